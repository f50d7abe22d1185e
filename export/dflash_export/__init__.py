"""Offline: a Hugging Face target and a DFlash drafter become a bundle of ONNX programs."""
