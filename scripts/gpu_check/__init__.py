"""One command for a machine with a GPU: what runs here, whether it is right, and how near it is to the device's limits.

python -m scripts.gpu_check                  under four minutes, no network, needs PyTorch with CUDA and NumPy
python -m scripts.gpu_check --rehearse       the same on the CPU, with a small target

It writes gpu_check.json and prints a table. Every section is a process of its own: one that fails, crashes or hangs
doesn't stop the others.
"""
