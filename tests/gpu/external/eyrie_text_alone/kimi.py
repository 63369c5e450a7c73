"""Kimi-K2.5 for requests of text: its own processor would run code that comes with the checkpoint."""
from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor


class TextAlone(BaseMultimodalProcessor):
    models = [KimiK25ForConditionalGeneration]

    async def process_mm_data_async(self, *_, **__):
        raise ValueError("this server takes text alone")
