"""nvidia-smi's answers in the forms of its versions and moods: what is sick or missing is unknown, never zero."""

from __future__ import annotations

import pytest

from opsctl.detect import smi, smi_text
from opsctl.records.events import GpuProcess, GpuSample

HEADER = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
    "power.draw [W], temperature.gpu"
)


def test_one_poll_with_a_header_and_units() -> None:
    text = f"{HEADER}\n2026/03/11 10:00:00.500, 3, NVIDIA L4, 97 %, 14002 MiB, 23034 MiB, 68.84 W, 62\n"
    gpus, problem = smi.parse_csv(text)
    assert gpus == (
        GpuSample(
            3, name="NVIDIA L4", utilization_pct=97, used_mib=14002, total_mib=23034, power_w=68.84, temperature_c=62
        ),
    )
    assert problem == ""
    assert next(smi.polls(text)).time == pytest.approx(1773223200.5)


def test_what_the_recorder_asks_for_comes_back() -> None:
    row = "2026/03/11 10:00:00.5, 0, GPU-1, 00000000:1B:00.0, NVIDIA H100, 98, 61230, 81559, 640, 700, 64, 1980, 0x04"
    (gpu,), problem = smi.parse_csv(row, smi.COLUMNS)
    assert (gpu.uuid, gpu.bus_id, gpu.clock_mhz, gpu.throttle) == ("GPU-1", "00000000:1B:00.0", 1980, 4)
    assert not problem


@pytest.mark.parametrize(
    "cell", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[Insufficient Permissions]", ""]
)
def test_a_cell_that_is_no_number_is_unknown(cell: str) -> None:
    (gpu,), _ = smi.parse_csv(f"0, {cell}, 100", ("index", "utilization.gpu", "memory.used"))
    assert gpu.utilization_pct is None
    assert gpu.used_mib == 100
    assert gpu.problem == ""


@pytest.mark.parametrize("cell", ["[GPU is lost]", "[GPU requires reset]"])
def test_a_lost_gpu_says_so(cell: str) -> None:
    (gpu,), _ = smi.parse_csv(f"0, {cell}, {cell}", ("index", "utilization.gpu", "memory.used"))
    assert gpu.problem == cell.strip("[]")
    assert gpu.used_mib is None


def test_units_of_old_drivers() -> None:
    assert [smi.number(cell) for cell in ("3109MB", "3 GiB", "61230 MiB", "98 %", "n/a")] == [
        3109,
        3072,
        61230,
        98,
        None,
    ]


def test_polls_begin_where_a_gpu_comes_again() -> None:
    rows = [f"{second}, {index}, 50" for second in (0, 1) for index in (0, 1)]
    found = list(smi.polls("\n".join(rows), ("other", "index", "utilization.gpu")))
    assert [[gpu.index for gpu in poll.gpus] for poll in found] == [[0, 1], [0, 1]]


def test_gpus_of_one_poll_may_carry_times_some_milliseconds_apart() -> None:
    row = "2026/03/11 10:00:0{}.{:03d}, {}, x, 1 %, 1 MiB, 2 MiB, 3 W, 4"
    text = "\n".join([HEADER, row.format(0, 1, 0), row.format(0, 9, 1), row.format(5, 1, 0), row.format(5, 9, 1)])
    assert [len(poll.gpus) for poll in smi.polls(text)] == [2, 2]


@pytest.mark.parametrize(
    "sentence",
    [
        "Failed to initialize NVML: Driver/library version mismatch",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.",
        "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system",
        "No devices were found",
    ],
)
def test_a_sentence_in_place_of_numbers_is_the_problem(sentence: str) -> None:
    assert smi.parse_csv(sentence, smi.COLUMNS) == ((), sentence)
    assert smi_text.parse(sentence).problem == sentence


def test_numbers_before_a_sentence_are_kept() -> None:
    gpus, problem = smi.parse_csv(
        "0, 50\nUnable to determine the device handle for GPU 1", ("index", "utilization.gpu")
    )
    assert [gpu.index for gpu in gpus] == [0]
    assert problem.startswith("Unable")


def test_silence_is_a_problem_of_its_own() -> None:
    assert smi.parse_csv("", smi.COLUMNS) == ((), smi.NO_ANSWER)
    assert smi_text.parse("\n").problem == smi.NO_ANSWER


def test_a_refused_column_is_named() -> None:
    assert (
        smi.refused_column('Field "clocks_throttle_reasons.active" is not a valid field to query.') == smi.COLUMNS[-1]
    )
    assert smi.refused_column("0, 50") is None


def test_reasons_as_columns_make_the_mask() -> None:
    text = "index, clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_thermal_slowdown\n0, Not Active, Active\n"
    assert smi.parse_csv(text)[0][0].throttle == 0x40


def test_pending_rows_are_maintenance() -> None:
    text = "index, utilization.gpu [%], remapped_rows.pending\n0, 5 %, Yes\n"
    assert smi.parse_csv(text)[0][0].maintenance == "row remapping is pending"


MODERN = """
+-----------------------------------------------------------------------------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   41C    P0            105W /  700W |   61230MiB /  81559MiB |    100%      Default |
|                                         |                        |             Disabled |
| Processes:                                                                              |
|    0   N/A  N/A             771      C   python                                61200MiB |
"""
OLD = """
| NVIDIA-SMI 5.325.15   Driver Version: 325.15         |
|   0  GeForce GTX 680     Off  | 0000:03:00.0     N/A |                  N/A |
| 60%   79C  N/A     N/A /  N/A |     3109MB /  4095MB |     N/A      Default |
"""


def test_the_table_of_a_new_driver() -> None:
    answer = smi_text.parse(MODERN)
    assert answer.gpus[0].power_limit_w == 700
    assert (answer.gpus[0].used_mib, answer.gpus[0].utilization_pct) == (61230, 100)
    assert answer.processes == (GpuProcess(771, "python", 61200.0, "0"),)


def test_the_table_of_an_ancient_driver() -> None:
    (gpu,) = smi_text.parse(OLD).gpus
    assert (gpu.used_mib, gpu.temperature_c, gpu.utilization_pct, gpu.power_w) == (3109, 79, None, None)


def test_lists_of_processes() -> None:
    text = "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n771, python, 40210 MiB, GPU-aa\n"
    assert smi_text.parse(text).processes == (GpuProcess(771, "python", 40210.0, "GPU-aa"),)
    assert smi_text.parse("pid, process_name, used_gpu_memory [MiB]\n").processes == ()
    assert smi_text.parse("|  No running processes found  |").processes == ()
    assert smi_text.parse("No devices were found").processes is None


def test_dmon_and_the_list_of_gpus() -> None:
    (gpu,) = smi_text.parse(
        "# gpu   pwr gtemp    sm   mem\n# Idx     W     C     %     %\n    0   612    61    97    40\n"
    ).gpus
    assert (gpu.power_w, gpu.utilization_pct) == (612, 97)
    assert smi_text.parse("GPU 1: NVIDIA H200 (UUID: GPU-1234)").gpus[0].uuid == "GPU-1234"
