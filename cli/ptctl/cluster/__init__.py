"""Clusters on GKE: made, listed, deleted and entered, without gcloud or kubectl.

Three ideas. `definition.requests` says, as pure values, every request that makes a cluster: the dry run prints them,
`creation` sends them. `decision` compares them with what is in the cloud, so that a run that broke anywhere goes on
when it is run again. Only `cloud` talks to Google.
"""
