"""How arrays travel, by the module that other packages import it from."""

from ronde.mxnet.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
