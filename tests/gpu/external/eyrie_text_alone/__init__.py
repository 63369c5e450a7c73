"""A package for SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE: its modules hold processors of multimodal input."""
