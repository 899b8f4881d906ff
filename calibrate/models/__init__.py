"""Real models for measuring and serving: transformers' layers, run on flat ragged batches over a cache of our own."""

from calibrate.models.flat_batch import FlatBatch, Part
from calibrate.models.flat_model import FlatModel
from calibrate.models.kv_cache import SlotCache
from calibrate.models.load import default_dtype, load_model, load_tokenizer

__all__ = ["FlatBatch", "FlatModel", "Part", "SlotCache", "default_dtype", "load_model", "load_tokenizer"]
