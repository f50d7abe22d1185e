"""Engines whose programs run on a device of their own: one stream of work, graphs, results in a ring.

`engine.DeviceEngine` knows a `device.Device` and `programs.DevicePrograms` only. The host device runs the same code
on a CPU, with a queue in the place of a stream, so that whatever isn't a CUDA call is tested where there is no GPU.
"""
