"""What a run did and wrote: logs, events, metrics, samples; where its directory lies; two runs compared."""
