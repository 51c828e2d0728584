"""The conformance test of export formats: subclass it, and give the format.

class TestMyFormat(ExportFormatConformance):
    def make(self) -> ExportFormat:
        return MyFormat()
"""

from __future__ import annotations

from dataclasses import replace

from autotune.export.configuration import Configuration, Provenance
from autotune.export.format import ExportFormat, ExportOptions

SECRET = "sk-never-write-this"  # noqa: S105


def sample_configuration(*, simulated: bool = True) -> Configuration:
    """A configuration with every kind of value in it."""
    return Configuration(
        model="Qwen/Qwen3-4B",
        arguments={
            "max-num-seqs": 24,
            "gpu-memory-utilization": 0.95,
            "enable-chunked-prefill": True,
            "enable-prefix-caching": False,
            "compilation-config": '{"cudagraph_mode": "FULL"}',
            "served-model-name": "it's $(mine) & yours",
        },
        environment={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
        withheld=("HF_TOKEN",),
        provenance=Provenance(
            study="t4-qwen3-4b",
            trial=11,
            created="2026-11-30T09:12:41+00:00",
            engine_kind="simulated" if simulated else "vllm",
            engine_version="0.24.0",
            gpu="t4",
            gpu_title="NVIDIA T4",
            model="qwen3-4b",
            slo={"p99_latency": "10s"},
            workload={"name": "chat", "input_tokens": 256, "output_tokens": 100},
            decision="tuned",
            gain_percent=39.46,
            interval_95=(32.4, 44.9),
            confirmed=True,
            requests=3840,
            capacity_rps=1.4935,
            output_tokens_per_s=149.35,
            p99_latency_s=9.22,
            start_s=72.0,
        ),
    )


class ExportFormatConformance:
    """What every export format must do."""

    options = ExportOptions()

    def make(self) -> ExportFormat:
        """The format under test."""
        raise NotImplementedError

    def _render(self, configuration: Configuration) -> str:
        return self.make().render(configuration, self.options)

    def test_has_a_name_and_a_summary_and_a_file_name(self) -> None:
        """A name without spaces, a one-line summary, a file name without a folder."""
        made = self.make()
        assert made.name
        assert made.name == made.name.strip().casefold()
        assert made.summary
        assert "\n" not in made.summary
        assert made.file_name
        assert "/" not in made.file_name

    def test_is_repeatable_text_that_ends_with_a_line_break(self) -> None:
        """The same configuration gives the same bytes."""
        text = self._render(sample_configuration())
        assert text == self._render(sample_configuration())
        assert text.endswith("\n")
        assert not text.endswith("\n\n")

    def test_simulated_figures_are_called_so(self) -> None:
        """The word is there for a simulated engine, and only then."""
        assert "SIMULATED" in self._render(sample_configuration(simulated=True))
        assert "SIMULATED" not in self._render(sample_configuration(simulated=False))

    def test_says_where_it_comes_from(self) -> None:
        """Study, GPU, objective and the measured capacity can be read in the file."""
        text = self._render(sample_configuration())
        for words in ("t4-qwen3-4b", "t4", "p99_latency", "10s", "1.49"):
            assert words in text

    def test_names_what_was_withheld(self) -> None:
        """A secret that the engine needs is named, so that the user can set it."""
        assert "HF_TOKEN" in self._render(sample_configuration())

    def test_line_breaks_in_names_do_not_make_lines(self) -> None:
        """Text from outside stays where it is put, in comments too."""
        configuration = sample_configuration()
        broken = configuration.provenance.model_copy(update={"study": "a\nINJECTED: true", "gpu_title": "b\rINJECTED"})
        text = self._render(replace(configuration, provenance=broken))
        assert not any(line.lstrip().startswith("INJECTED") for line in text.splitlines())
