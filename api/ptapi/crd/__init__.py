"""The CustomResourceDefinition of PostTrainJob, generated from the spec models."""
