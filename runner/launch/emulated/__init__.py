"""Nodes of one machine: network namespaces with shaped links between them, without root. Linux only."""
