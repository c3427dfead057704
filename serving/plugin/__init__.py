"""The capture patch as a plugin of SGLang (0.5.11 on): the same lines, put into functions in memory.

SGLang calls `load` in each of its processes through the entry point group `sglang.srt.plugins`. What is installed on
disk stays as it is. The plugin takes a written patch, checks the files it is for against the patch's digests, serves
the tap's modules from the patch, and gives each function that the patch changes the code that the patched file would
give it. A server under the plugin therefore runs the very code whose digest it announces.

Standard library only: this runs in SGLang's environment, where the tool's own dependencies need not be installed.
"""

from auxtap.serving.plugin.loading import load

__all__ = ["load"]
