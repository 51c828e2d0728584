from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import UsageError
from autotune.cli.definition import StudyOptions, build_spec, parse_argument
from autotune.spec import Combine, EngineChoice, LoadLevel, Objective, QualityLimits

STUDY = """
name: mine
gpu: t4
model: qwen3-4b
workload: {input_tokens: 64, output_tokens: 100}
slo: {p99_latency: 10s}
budget: {trials: 3}
engine: simulated
"""


def options(**changes: object) -> StudyOptions:
    return StudyOptions(**({"gpu": "t4", "model": "qwen3-4b", "slo_p99": "10s"} | changes))  # type: ignore[arg-type]


def test_the_main_command_needs_no_more_than_gpu_model_and_objective() -> None:
    spec = build_spec(options())
    assert spec.name == "t4-qwen3-4b-chat"
    assert spec.slo.to_mapping() == {"p99_latency": "10s"}
    assert spec.load is None
    assert (spec.workload.input_tokens.mean, spec.workload.output_tokens.mean) == (512, 128)


def test_an_option_wins_over_the_study_files_key(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    spec = build_spec(StudyOptions(study=path, trials=9, slo_p99="5s", slo_ttft_p99="1s"))
    assert (spec.name, spec.engine, spec.budget.trials) == ("mine", EngineChoice.SIMULATED, 9)
    assert spec.slo.to_mapping() == {"p99_latency": "5s", "p99_ttft": "1s"}


def test_earlier_studies_are_asked_unless_the_option_or_the_file_says_no(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    assert build_spec(StudyOptions(study=path)).reuse
    assert not build_spec(StudyOptions(study=path, no_reuse=True)).reuse
    path.write_text(STUDY + "reuse: false\n")
    assert not build_spec(StudyOptions(study=path)).reuse


def test_limits_of_the_quality_check_come_from_the_study_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "quality: {first_tokens: 0.95}\n")
    assert build_spec(StudyOptions(study=path)).quality == QualityLimits(first_tokens=0.95)
    path.write_text(STUDY + "quality: {first_tokens: 95}\n")
    with pytest.raises(UsageError, match=r"quality.first_tokens.*less than or equal to 1"):
        build_spec(StudyOptions(study=path))


def test_a_fixed_load_enters_the_name() -> None:
    spec = build_spec(options(concurrency=5))
    assert spec.load == LoadLevel.closed(5)
    assert spec.name == "t4-qwen3-4b-chat-5-at-once"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slo_p99": "10"}, "--slo-p99"),
        ({"slo_p99": "0s"}, "--slo-p99"),
        ({"slo_p99": "-3s"}, "--slo-p99"),
        ({"slo_p99": None}, "objective"),
        ({"gpu": None}, "--gpu"),
        ({"model": None}, "--model"),
        ({"rate": "1", "concurrency": 4}, "--concurrency and --rate"),
        ({"rate": "0"}, "--rate"),
        ({"concurrency": 0}, "--concurrency"),
        ({"trials": 0}, "--trials"),
        ({"time_budget": "2"}, "--time-budget"),
        ({"workload": "chatt"}, "chatt"),
        ({"study": Path("no/such.yaml")}, "no/such.yaml"),
        ({"space": Path("no/such.yaml")}, "no/such.yaml"),
        ({"input_tokens": "768:256"}, "768:256"),
        ({"arguments": ("=4",)}, "--set"),
    ],
)
def test_bad_input_is_one_line_that_names_it(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_spec(options(**changes))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("slow: {p99_latency: 1s}", "slow"),
        ("slo: {p99_latency: 1}", "p99_latency"),
        ("budget: {trails: 3}", "trails"),
        ("budget: {trials: 0}", "trials"),
        ("load: {rate: 1, concurrency: 2}", "load"),
        ("workload: {input_tokens: 64}", "output_tokens"),
        ("workload: {input_tokens: 9:3, output_tokens: 1}", "9:3"),
        ("name: a b", "name"),
        ("sampler: magic", "sampler"),
        ("objective: captaincy", "capacity"),
        ("- a list", "study.yaml"),
        ("a: [", "study.yaml"),
    ],
)
def test_a_wrong_study_file_is_refused_by_key(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "study.yaml"
    key = line.split(":", maxsplit=1)[0]
    rest = "\n".join(text for text in STUDY.splitlines() if not text.startswith(f"{key}:"))
    path.write_text(line if key.startswith(("-", "a")) else f"{rest}\n{line}\n")
    with pytest.raises(UsageError) as caught:
        build_spec(StudyOptions(study=path))
    assert named in str(caught.value)


def test_arguments_keep_their_types() -> None:
    assert parse_argument("max_num_seqs=64") == ("max-num-seqs", 64)
    assert parse_argument("--dtype=half") == ("dtype", "half")
    assert parse_argument("enforce-eager") == ("enforce-eager", True)
    assert parse_argument("enable-prefix-caching=false") == ("enable-prefix-caching", False)
    assert parse_argument('compilation-config={"a": 1}') == ("compilation-config", '{"a": 1}')


def test_an_objective_enters_the_name_unless_the_load_implies_it() -> None:
    assert build_spec(options(objective=Objective.COST, price="12/day")).price_per_hour == 0.5
    assert build_spec(options(objective=Objective.COST)).name == "t4-qwen3-4b-chat-cost"
    assert build_spec(options(objective=Objective.LATENCY, rate="2")).name == "t4-qwen3-4b-chat-2rps-latency"
    implied = build_spec(options(concurrency=5))
    assert implied.objective is Objective.THROUGHPUT
    assert build_spec(options(concurrency=5, objective=Objective.THROUGHPUT)) == implied


def test_a_study_file_names_objective_and_price(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"{STUDY}objective: pareto\nprice: 0.53/h\n")
    spec = build_spec(StudyOptions(study=path))
    assert (spec.objective, spec.price_per_hour) == (Objective.PARETO, 0.53)
    assert build_spec(StudyOptions(study=path, objective=Objective.COST)).objective is Objective.COST


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": Objective.LATENCY}, "--concurrency or --rate"),
        ({"objective": Objective.THROUGHPUT}, "--concurrency or --rate"),
        ({"objective": Objective.CAPACITY, "concurrency": 4}, "4 at once"),
        ({"objective": Objective.ENERGY, "rate": "2"}, "2 req/s"),
        ({"objective": Objective.COST, "price": "cheap"}, "--price"),
    ],
)
def test_an_objective_and_a_load_that_do_not_fit_are_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_spec(options(**changes))
    assert named in str(caught.value)
    assert caught.value.remedy


def test_several_workloads_from_the_command_line_and_from_a_study_file(tmp_path: Path) -> None:
    spec = build_spec(options(workload="chat", more_workloads=("rag",)))
    assert [workload.name for workload in spec.workloads] == ["chat", "rag"]
    assert (spec.workload.name, spec.combine, spec.name) == ("chat", Combine.WORST, "t4-qwen3-4b-chat-rag")
    path = tmp_path / "study.yaml"
    rest = "\n".join(line for line in STUDY.splitlines() if not line.startswith("workload"))
    path.write_text(
        f"{rest}\nworkloads:\n- {{workload: chat, weight: 3}}\n"
        "- {workload: {name: long, input_tokens: 3000, output_tokens: 10}}\ncombine: weighted\n"
    )
    spec = build_spec(StudyOptions(study=path))
    assert [(share.workload.name, share.weight) for share in spec.mix] == [("chat", 3.0), ("long", 1.0)]
    assert (spec.longest_workload.name, spec.combine) == ("long", Combine.WEIGHTED)
    alone = build_spec(StudyOptions(study=path, workload="rag"))
    assert (alone.workload.name, alone.mix) == ("rag", ())


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("workloads: [chat]", "list of two or more"),
        ("workloads: [chat, rag]", "names no workload"),
        ("workloads: [{workload: chat, weight: 0}, {workload: rag}]", "weight"),
        ("workloads: [{workload: chat, share: 1}, {workload: rag}]", "share"),
        ("workloads: [{workload: chat}, {workload: chat}]", "same name"),
        ("combine: weighted", "one workload"),
        ("workload: chat\nworkloads: [{workload: chat}, {workload: rag}]", "both are given"),
    ],
)
def test_a_wrong_list_of_workloads_is_refused(tmp_path: Path, lines: str, named: str) -> None:
    path = tmp_path / "study.yaml"
    rest = "\n".join(line for line in STUDY.splitlines() if not line.startswith("workload"))
    path.write_text(f"{rest}\n{lines}\n")
    with pytest.raises(UsageError) as caught:
        build_spec(StudyOptions(study=path))
    assert named in str(caught.value)


def test_a_way_to_combine_one_workload_is_refused() -> None:
    with pytest.raises(UsageError, match="one workload"):
        build_spec(options(workload="chat", combine=Combine.WEIGHTED))


def test_lengths_of_several_workloads_are_written_in_their_files() -> None:
    with pytest.raises(UsageError, match="--input-tokens"):
        build_spec(options(workload="chat", more_workloads=("rag",), input_tokens="100"))


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("arguments: [a, b]", "arguments: '.*' is not a mapping"),
        ("arguments: {max-num-seqs: [1, 2]}", "arguments: max-num-seqs: '.*' is not a plain value"),
        ("load: {concurrency: 1.7}", "load: '1.7' is not a whole number"),
        ("load: {concurrency: true}", "load: 'True' is not a whole number"),
    ],
)
def test_values_of_the_wrong_type_in_a_study_file_are_refused_in_words(
    tmp_path: Path, key: str, complaint: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"{STUDY}{key}\n")
    with pytest.raises(UsageError, match=complaint):
        build_spec(StudyOptions(study=path))


def test_what_is_not_a_length_is_told_with_its_option() -> None:
    with pytest.raises(UsageError, match=r"^--output-tokens: '5 tokens' is not a token length"):
        build_spec(options(output_tokens="5 tokens"))


def test_a_name_that_is_a_path_is_refused_with_what_a_name_may_hold() -> None:
    with pytest.raises(UsageError, match=r"name: '\.\./x' cannot name a folder. Use letters"):
        build_spec(options(name="../x"))


def test_one_argument_is_not_set_to_two_values() -> None:
    with pytest.raises(UsageError, match="--set max-num-seqs: both 4 and 8 are given"):
        build_spec(options(arguments=("max-num-seqs=4", "max_num_seqs=8")))
    assert build_spec(options(arguments=("max-num-seqs=4", "max-num-seqs=4"))).arguments == {"max-num-seqs": 4}


def test_a_misspelt_key_of_a_workload_file_comes_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("name: w\ninput_tokens: 50\noutput_token: 5\n")
    with pytest.raises(UsageError, match=r"unknown key 'output_token'. Did you mean output_tokens"):
        build_spec(options(workload=str(path)))
