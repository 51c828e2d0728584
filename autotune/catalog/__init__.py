"""GPUs, models and named workloads: facts from ``search_spaces/`` and from ``config.json``."""

from autotune.catalog._data import data_folder
from autotune.catalog.gpu import Gpu, GpuCalibration, identify_gpu, list_gpus, load_gpu
from autotune.catalog.model import DTYPE_BYTES, QUANTIZED_BYTES, ModelShape, Quantization
from autotune.catalog.models import list_models, load_model
from autotune.catalog.revision import model_revision
from autotune.catalog.rule import Rule
from autotune.catalog.workloads import DEFAULT_WORKLOAD, list_workloads, load_workload

__all__ = [
    "DEFAULT_WORKLOAD",
    "DTYPE_BYTES",
    "QUANTIZED_BYTES",
    "Gpu",
    "GpuCalibration",
    "ModelShape",
    "Quantization",
    "Rule",
    "data_folder",
    "identify_gpu",
    "list_gpus",
    "list_models",
    "list_workloads",
    "load_gpu",
    "load_model",
    "load_workload",
    "model_revision",
]
