"""TensorRT and TensorRT-RTX: engines built from a bundle, with or without a GPU, and run on one."""
