"""What a chat consists of: who answers, the messages so far, tools that are called, pictures that are shown."""
