"""``accel-streams doctor``: everything about an installation that a bug report needs."""

from __future__ import annotations

from dataclasses import asdict

import typer

from accel_streams.cli._common import EXIT_FAILED, JsonFile, command_app
from accel_streams.cli._diagnosis import Diagnosis, diagnose
from accel_streams.cli._listing import backend_rows, backends_json
from accel_streams.cli._output import SCHEMA, table, write_json

__all__ = ["app"]

app = command_app()


@app.command("doctor")
def doctor(json_file: JsonFile = None) -> None:
    """Show versions, settings, the state of every backend, and DeepSpeed's known hazards.

    Made for bug reports; works without torch and without DeepSpeed. The hazards are not looked for:
    what is shown comes with this package, and was measured with the release of DeepSpeed that is
    named there. The exit status is 1 when something that was asked for doesn't hold: a variable
    with an unknown value, a chosen backend that isn't usable, a DeepSpeed outside the supported
    range.

    \b
    Example:
      accel-streams doctor --json doctor.json
    """  # noqa: D301  (click wants the backspace itself)
    diagnosis = diagnose()
    typer.echo(_render(diagnosis))
    if json_file is not None:
        write_json(json_file, _to_json(diagnosis))
    if diagnosis.problems:
        raise typer.Exit(EXIT_FAILED)


def _render(diagnosis: Diagnosis) -> str:
    parts = [
        table(
            [
                ("accel_streams", diagnosis.accel_streams),
                ("Python", diagnosis.python),
                ("platform", diagnosis.platform),
                ("torch", diagnosis.torch or "not installed"),
                (
                    "DeepSpeed",
                    f"{diagnosis.deepspeed or 'not installed'} "
                    f"(supported: {diagnosis.supported_deepspeed})",
                ),
                ("entry point", diagnosis.autoload.summary),
                ("accelerator", diagnosis.accelerator),
                ("ZeRO mode", diagnosis.zero_mode or "none, the setting is unknown"),
                ("fake device", diagnosis.fake_device),
            ]
        ),
        "environment\n"
        + table(
            [
                (name, "unset" if value is None else value or "(empty)")
                for name, value in diagnosis.environment
            ],
            indent="  ",
        ),
        "backends\n" + table(backend_rows(diagnosis.backends), indent="  "),
        f"hazards ({diagnosis.hazards.source})\n"
        + table(
            [
                ("", "as shipped", "with accel_streams", ""),
                *(
                    (hazard.id, hazard.as_shipped, hazard.accel_streams, hazard.title)
                    for hazard in diagnosis.hazards.rows
                ),
            ]
            if diagnosis.hazards.rows
            else [],
            indent="  ",
        ),
    ]
    for title, lines in (("notes", diagnosis.notes), ("problems", diagnosis.problems)):
        if lines:
            parts.append(title + "\n" + "\n".join(f"  - {line}" for line in lines))
    if not diagnosis.problems:
        parts.append("no problems found")
    return "\n\n".join(parts)


def _to_json(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "backends": backends_json(diagnosis.backends),
        "accel_streams": diagnosis.accel_streams,
        "python": diagnosis.python,
        "platform": diagnosis.platform,
        "torch": diagnosis.torch,
        "deepspeed": diagnosis.deepspeed,
        "supported_deepspeed": diagnosis.supported_deepspeed,
        "autoload": {
            "registered": diagnosis.autoload.registered,
            "enabled": diagnosis.autoload.enabled,
            "ran": diagnosis.autoload.ran,
        },
        "accelerator": diagnosis.accelerator,
        "zero_mode": diagnosis.zero_mode,
        "fake_device": diagnosis.fake_device,
        "hazards": asdict(diagnosis.hazards),
        "environment": dict(diagnosis.environment),
        "notes": list(diagnosis.notes),
        "problems": list(diagnosis.problems),
    }
