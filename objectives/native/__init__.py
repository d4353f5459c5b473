"""Kernels in C++ for a CPU, compiled on the machine that trains, once."""
