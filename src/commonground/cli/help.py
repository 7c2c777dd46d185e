"""``--help`` in sections: sixty options in one list are no help."""

from __future__ import annotations

import click

__all__ = ["SECTIONS", "SectionedCommand"]


def _of(names: str) -> tuple[str, ...]:
    return tuple(names.split())


SECTIONS: dict[str, tuple[str, ...]] = {
    "Data": _of(
        "data clients classes_per_client partition task train_samples test_samples feature_noise normalize augment "
        "image_size data_dir"
    ),
    "Your own table": _of(
        "target client_column drop text_column kinds separator encoding scaling few_rows min_rows split_column "
        "time_column group_column test_share test_seed missing_target missing_client"
    ),
    "Model and method": _of("model body head batch_norm init_from assignments"),
    "Comparison": _of("seeds reference to_accuracy to_metric grids validation local_only"),
    "Rounds": _of(
        "rounds participation weighting aggregate server_optimizer server_lr server_momentum server_beta2 "
        "server_epsilon finetune_epochs finetune"
    ),
    "Privacy": _of("dp dp_clip dp_noise dp_epsilon dp_delta dp_where dp_adaptive_clip dp_secret_noise"),
    "Local training": _of(
        "local_epochs local_steps batch_size optimizer lr head_lr body_lr lr_schedule warmup momentum betas eps "
        "weight_decay no_decay_bias clip_norm class_weights loss"
    ),
    "Tests": _of(
        "eval_every eval_last eval_clients final_eval_clients metrics metric rank_by worst_min_rows "
        "validation_fraction early_stopping"
    ),
    "Computing": _of("seed engine workers ray_address threads device precision dtype"),
    "Files": _of("config_file out dry_run as_json resume allow_other_numerics track quiet help"),
}
"""Titles, in their order, and the parameters below them; what is in no section comes last."""


class SectionedCommand(click.Command):
    """A command whose options are shown in :data:`SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a list for each section."""
        asked = self.get_help_option(ctx)  # whose name is click's own matter
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {"help" if one is asked else str(one.name): one.get_help_record(ctx) for one in options}
        known = {name for names in SECTIONS.values() for name in names}
        rest = tuple(name for name in records if name not in known)
        for title, names in {**SECTIONS, "Further options": rest}.items():
            rows = [record for name in names if (record := records.get(name)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
