"""Each sentence of these pages that says all, every, never, no or the same is registered here with the test that proves it."""

import json
import re
from pathlib import Path

import pytest
import torch

import posenc
from posenc import Positions

ROOT = Path(__file__).parents[1]
ABSOLUTE = re.compile(
    r"\b(all|always|any|anything|each|every|exactly|identical|neither|never|no|none|nobody|nothing|only|refused|same)\b",
    re.IGNORECASE,
)
PLAIN = ""
"""Not for a test: what a page leads to, what follows from a definition, or what is said of other programs and links to them."""

README = {
    "in which every training learns it": "test_readme_numbers.py::test_stick_breaking_and_what_more_training_does",
    "Check any function against the paper": PLAIN,
    "Your model code stays the same for every encoding": "docs/test_guide_model.py::test_the_guides_model_trains_and_decodes_under_every_encoding",
    "Every encoding is tested against a float64 reference of its formula": "test_conformance.py::test_every_encoding_conforms",
    "plain transformers loads to the same logits": "pretrained/test_export.py::test_every_static_schedule_comes_back_from_plain_transformers",
    "The same call handles padding": "test_conformance.py::test_every_encoding_conforms",
    "train a decoder that every inference server runs": "test_readme_numbers.py::test_rope_where_every_server_has_to_run_it",
    "(under `yarn` none does)": "test_readme_numbers.py::test_dual_chunk_in_python",
    "a rule over every size, budget and text measured": "test_readme_numbers.py::test_the_advice_is_that_of_the_rule",
    "no method is better than truncating the input": "test_absolute_sentences.py::test_no_method_predicts_running_text_better_than_truncation",
    "in 4 of 4 documents under YaRN, in none without": "test_readme_numbers.py::test_the_passkey_and_the_time_it_takes",
    "method, training, decoding and all lengths": PLAIN,
    "Each finding in words": "conformance/test_findings.py::test_the_table_matches_the_installed_packages",
    "| ways to extend RoPE |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| bias by distance |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| padding, packing, KV caches |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| conformance, passed / tested | all, against loops": "test_front_page.py::test_the_readme_counts_what_the_package_has",
    "All of them, with pictures, options, papers and tests": PLAIN,
    "have nearly the same order at 7.5 M": "test_readme_numbers.py::test_the_limits",
}
SECURITY = {
    "worker processes through a folder that only you can read": "pretrained/test_scratch.py::test_a_temporary_folder_is_read_by_its_user_alone",
    "Processes of one run send each other pickles": "hostile/test_trust.py::test_code_is_imported_for_the_command_line_and_python_arguments_alone",
    "Data never run code": "hostile/test_trust.py::test_every_reader_of_files_is_known",
    "where it is `MODULE:NAME` or `FILE:NAME`, it is refused": "hostile/test_trust.py::test_no_setting_of_a_file_imports",
    "a link may lead out of the folder only from a snapshot": "hostile/test_files_models.py::test_links_are_followed_in_the_cache_of_the_hub_alone",
    "Pickles (`.bin`, `.pt`, `.pth`, `.ckpt`) are refused": "hostile/test_files_models.py::test_a_pickle_is_never_opened",
    "Code beside the weights is never run": "hostile/test_files_models.py::test_code_beside_the_weights_is_not_run",
    "neither an attention implementation nor a kernel": "hostile/test_checkpoints.py::test_the_attention_of_a_configuration_is_not_followed",
    "reader is another package, are refused": "hostile/test_checkpoints.py::test_quantised_weights_are_refused_before_their_package_is_imported",
    "hub run no code": "test_absolute_sentences.py::test_the_version_of_datasets_that_runs_no_code_is_required",
    "pages load nothing from elsewhere": "hostile/test_html.py::test_a_browser_shows_a_name_and_runs_none",
    "Each is checked before anything of the size is allocated": "hostile/test_trust.py::test_no_integer_option_allocates_more_than_is_stated",
    "nothing in the files that would change the output is left out": "hostile/test_hub.py::test_weights_that_would_change_the_output_are_refused",
    "in all at most 2 times the numbers in its files": "hostile/test_trust.py::test_the_bounds_that_security_states_are_those_of_the_code",
    "no deeper than Python's recursion limit": "hostile/test_trust.py::test_nesting_is_bounded",
    "anybody who can reach it can run code": PLAIN,  # a warning, no promise
    "A fault in any of the above": PLAIN,
}
ATTENTION = {
    "with any encoding": "test_conformance.py::test_every_encoding_conforms",
    "As a mask of PyTorch's fused kernel": PLAIN,
    "for all encodings": "test_readme_numbers.py::test_every_encoding_takes_linear_memory",
    "| none on the scores |": PLAIN,
    "sums of gates, key-gated distances": PLAIN,
    "which all layers of a pass share": "test_pass.py::test_layers_of_a_pass_are_the_reference_at_any_positions",
    'backend="sdpa"` stays linear in memory at every length': "backends/test_fused.py::test_memory_grows_with_the_sequence_and_not_with_its_square",
    "may hold anything": "test_hidden.py::test_nothing_hidden_is_read",
    "reach no output and no gradient, on any backend": "test_hidden.py::test_nothing_hidden_is_read_by_any_backend",
    "Finite numbers there reach no other document": "test_hidden.py::test_a_large_number_that_some_queries_do_not_see_reaches_none_of_them",
    "one graph for all lengths and one for single-token steps": "backends/test_fused.py::test_one_graph_serves_every_length_and_one_every_step",
    "if the processor has no instructions for them": "backends/test_half_precision.py::test_explain_says_so_where_it_is_so",
    "each row is the same vector": PLAIN,
    "which the kernel reads like any mask": PLAIN,
    "takes O(N) memory for every encoding": "test_docs_numbers.py::test_all_but_one_encoding_take_linear_memory_with_a_cache",
    "which serve every schedule": "test_cache.py::test_pieces_equal_the_full_pass_in_every_layer",
    "process all keys at every step": PLAIN,
    "if no mask is needed, SDPA with a dense mask": "backends/test_flex.py::test_what_auto_takes",
    "makes them defaults on any GPU": PLAIN,
}
RELIABILITY = {
    "where there is no terminal nothing is asked": "report/test_tables.py::test_without_a_terminal_and_with_yes_nothing_is_asked",
    "each figure is saved as SVG or PNG": "report/test_files.py::test_tables_are_copied_and_figures_saved",
    "every heading has a link": "report/test_files.py::test_every_heading_has_an_address",
    "write every finished cell": "lab/test_study.py::test_an_error_leaves_what_was_stored",
    "the same command resumes it": "lab/test_study.py::test_what_is_stored_is_not_measured_again_and_what_is_damaged_is",
    "Every command takes `--config FILE`": "cli/test_settings.py::test_what_is_written_is_read_again",
    "prints all settings as YAML": "cli/test_settings.py::test_print_config_prints_what_config_takes",
    "reproduces every number bit for bit": "cli/test_settings.py::test_a_comparison_run_again_gives_the_same_numbers",
    "in about a second or less for each encoding": PLAIN,
    "two held-out examples under every condition": "lab/test_behaviour.py::test_the_behaviour_of_every_task_is_the_same_each_time",
    "how often they call each operator": "lab/bench/test_run.py::test_changed_code_is_measured_again_and_what_changes_nothing_is_not",
    "a refactor or another version string changes nothing": "lab/test_behaviour.py::test_the_command_measures_again_under_an_edited_program",
    "Every decision is one line": "lab/test_behaviour.py::test_changed_code_is_measured_again_and_what_changes_nothing_is_not",
    "trains the baseline of the table again on each task": "lab/test_behaviour.py::test_another_machines_run_is_repeated_and_its_difference_stated",
    "It cannot show a change that acts only on long sequences": PLAIN,
    "have no behaviour": "lab/test_behaviour.py::test_archives_are_recognised",
    "leaves no partial file": "pretrained/test_scratch.py::test_a_file_and_a_folder_appear_at_the_end",
    "into the same folder is refused": "lab/test_study.py::test_two_runs_never_share_a_folder_whatever_the_order_of_their_steps",
    "bit for bit on the same machine and versions": "lab/test_checkpoint.py::test_it_continues_bit_for_bit",
    "Evaluations and benchmarks have no checkpoints": PLAIN,
    "leaves no file but the lock": "lab/test_compare.py::test_a_model_that_ends_as_nan_is_named_and_never_stored",
    "Data never run code": "hostile/test_trust.py::test_every_reader_of_files_is_known",
    "only safetensors and GGUF are read": "hostile/test_files_models.py::test_a_pickle_is_never_opened",
    "code beside the weights is never run": "hostile/test_files_models.py::test_code_beside_the_weights_is_not_run",
    "refused in what is read from a file": "hostile/test_trust.py::test_no_setting_of_a_file_imports",
    "SIGTERM does what Ctrl-C does, in every command": "hostile/test_stopped_commands.py::test_a_stopped_command_leaves_nothing_and_goes_on",
    "Worker processes receive neither": "lab/test_compare.py::test_ctrl_c_keeps_and_reports_what_was_measured",
    "each has a lock that its process holds": "pretrained/test_scratch.py::test_nothing_else_makes_temporary_folders",
    "never those of a live one": "pretrained/test_scratch.py::test_what_a_killed_process_leaves_goes_and_what_a_live_one_uses_stays",
    "under torchrun or accelerate it is refused": "lab/evals/test_eval_command.py::test_several_processes_of_a_launcher_are_refused",
    "prints the traceback of every error": "cli/test_errors.py::test_an_error_of_the_users_has_a_traceback_on_demand",
    "does all of this for any subclass": "test_examples.py::test_a_new_study_is_resumed",
    "| `cells()` | every cell": PLAIN,
    "a record for each cell of a job": "lab/test_study.py::test_a_wrong_study_is_refused",
}
DESIGN = {
    "which keys each query sees": PLAIN,
    "One identity covers every scheme": PLAIN,
    "are the same case": "positions/test_positions.py::test_cross_takes_queries_and_keys_from_two_positions",
    "`Positions` are immutable and remember nothing": "test_pass.py::test_what_a_pass_held_is_free_when_it_is",
    "No value of a position means anything but a place": "positions/test_placed.py::test_every_coordinate_counts",
    "that a token has none": "positions/test_placed.py::test_derived_positions_carry_it",
    "forward nothing": PLAIN,
    "Constant tables are never in the `state_dict`": "test_encodings.py::test_tables_stay_out_of_the_state_and_survive_casts",
    "One definition of every bias": "test_terms.py::test_a_structure_is_its_score_mod_in_every_form",
    "never an N x N tensor": PLAIN,
    "Each structure gives one closure": "test_terms.py::test_a_structure_is_its_score_mod_in_every_form",
    "Each kind has the code of every backend": PLAIN,
    "are the same idea for rotations": PLAIN,
    "All are compared with the slow `reference`": "test_conformance.py::test_every_backend_of_variants_conforms",
    "parses all of them into a tree": "test_spec.py::test_a_tree_is_printed_and_read_again",
    "computes the others, stores each at once": "lab/test_study.py::test_what_is_stored_is_not_measured_again_and_what_is_damaged_is",
}
DATA = {
    "Every test passage lies in one file": "lab/test_corpora.py::test_passages_lie_in_one_held_out_file",
    "or else the only column of strings": "lab/test_data_sources.py::test_the_text_column",
    "No loading script and no pickle is run": "lab/test_data_sources.py::test_no_script_and_no_pickle_is_run",
    "the same text for every tokenizer": "lab/test_tokenizers.py::test_every_tokenizer_is_tested_on_the_same_text",
    "each has positions from 0 and sees only itself": "lab/test_packing.py::test_packed_training_is_training_on_the_documents_apart",
    "No document is both trained and tested on": "lab/test_packing.py::test_the_cut_is_where_a_document_starts_if_one_starts_near",
}
DISTRIBUTED = {
    "A slice that cuts heads which share a key head is refused": "distributed/test_heads.py::test_a_slice_that_cuts_a_group_is_refused",
    "A parameter that all heads share": "distributed/test_heads.py::test_parts_of_the_heads_are_one_process",
    "`embed` acts on an input that all processes have": "distributed/test_heads.py::test_parts_of_the_heads_are_one_process",
    "Encodings with nothing per head are copied": "distributed/test_heads.py::test_parts_of_the_heads_are_one_process",
    "FLOATER mix heads, and are refused": "distributed/test_heads.py::test_slices_that_are_none_or_cut_groups_are_refused",
    "DTensors are refused": "distributed/test_sharded_parameters.py::test_dtensors_are_refused_in_a_sentence",
    "Outputs and all gradients equal those of one process": "distributed/test_heads.py::test_parts_of_the_heads_are_one_process",
    "are no `forward`": "distributed/test_sharded_parameters.py::test_an_encoding_that_is_sharded_alone_says_so",
    "then `reset_parameters()` of each module": "distributed/test_sharded_parameters.py::test_fsdps_recipe_from_meta",
    "Every encoding has it": "distributed/test_heads.py::test_reset_parameters_gives_a_fresh_one",
    "under the same seed to the same numbers": "distributed/test_heads.py::test_reset_parameters_gives_a_fresh_one",
    "Tables need nothing": "distributed/test_heads.py::test_reset_parameters_gives_a_fresh_one",
    "act on each part as on the complete sequence": "distributed/test_shards.py::test_attention_on_shards_is_that_of_the_unsharded_sequence",
    "gathers all keys and values of one layer at a time": PLAIN,
    "so that all do the same causal work": "distributed/test_shards.py::test_zigzag_gives_everyone_the_same_work",
    "Shards take no cache": "distributed/test_shards.py::test_refusals",
    "all parameters' gradients equal those of one process": "distributed/test_processes.py::test_every_encoding_is_the_same_on_shards",
}
PADDING = {
    "the same output as each sequence alone": "test_conformance.py::test_every_encoding_conforms",
    "A query that sees no key gives zeros": "test_attention.py::test_rows_that_see_nothing_are_zero_with_finite_gradients",
    "are documents of no tokens": "positions/test_positions.py::test_documents_of_no_tokens_are_none",
    "start again with each document": "positions/test_positions.py::test_restarts_are_documents",
    "causal positions that fall are refused": "positions/test_positions.py::test_causal_positions_that_fall_are_refused_with_the_remedies",
    "starts a document at each position that is not above the one before it": "positions/test_positions.py::test_restarts_are_documents",
    "A window limits what each token sees": PLAIN,
    "in all layers or some, or with a width for each head": "encodings/test_visible.py::test_layers_have_their_own",
    "Keys are stored rotated, each once": "test_cache.py::test_pieces_equal_the_full_pass_in_every_layer",
    "the next `n` tokens of each row": "test_cache.py::test_a_padded_prompt_goes_on_as_each_row_alone",
    "With any encoding, store unrotated keys": "test_conformance.py::test_every_encoding_conforms",
    "Rotate each new key once": PLAIN,
    "Each move rounds to the keys' dtype again": PLAIN,
}
MODEL = {
    "work for every encoding": "docs/test_guide_model.py::test_the_guides_model_trains_and_decodes_under_every_encoding",
    "tables of constants never are": "test_encodings.py::test_tables_stay_out_of_the_state_and_survive_casts",
    "| `scale`, `dropout_p` | the same |": "test_attention.py::test_dropout_drops_and_scale_overrides",
    "are refused with what to pass": "test_every_encoding.py::test_names_of_pytorchs_attention_get_a_sentence",
    "Axes in another order are refused where it shows": "test_every_encoding.py::test_heads_in_the_place_of_tokens_are_named",
    "each row repeats 11 random tokens": PLAIN,
    "`KVCache` stores keys, values and gates of every layer": "test_cache.py::test_pieces_equal_the_full_pass_in_every_layer",
    "Step-by-step decoding equals one full forward pass": "docs/test_guide_model.py::test_the_guides_model_trains_and_decodes_under_every_encoding",
    "This model takes every encoding of `posenc list`": "docs/test_guide_model.py::test_the_guides_model_trains_and_decodes_under_every_encoding",
}
COMPARE = {
    "A text of equal test passages is refused": "lab/test_compare.py::test_a_text_that_repeats_itself",
    "trains the same small Transformer on the same text": "lab/test_training.py::test_every_encoding_sees_the_same_batches",
    "the same for generated tasks and images": PLAIN,
    "One seed gives every encoding the same initial weights": "lab/test_transformer.py::test_the_host_starts_the_same_under_every_encoding_and_queries_make_up_for_scale",
    "Every encoding gets the same batches in the same order": "lab/test_training.py::test_every_encoding_sees_the_same_batches",
    "All encodings share one set of learning rates": "lab/test_training.py::test_what_an_encoding_reads_tokens_by_learns_at_the_rate_of_the_model",
    "the last 64 bytes of each are scored": "lab/test_training.py::test_evaluation_is_paired",
    "the scored bytes are *the same*": "lab/test_training.py::test_evaluation_is_paired",
    "also scores the same bytes with at most so many before them": "lab/test_corpora.py::test_the_same_targets_are_tested_with_less_before_them",
    "*does no harm*": "lab/test_compare.py::test_verdicts",
    "above -0.05, which is all that a flat curve shows": "lab/test_compare.py::test_verdicts",
    "with every frequency divided by the factor": "lab/test_training.py::test_untrained_variants_share_the_weights_and_equal_the_model_at_the_training_length",
    "costs only the new runs": "lab/test_study.py::test_what_is_stored_is_not_measured_again_and_what_is_damaged_is",
    "is always added": "lab/test_compare.py::test_the_encoding_without_positions_is_always_compared",
    "Each has, per length": "lab/test_compare.py::test_results_hold_every_number",
}
FINETUNE = {
    "all weights are trained and must be float32": "pretrained/test_precision.py::test_full_weights_are_trained_in_float32_on_every_machine",
    "every window of every document is equally likely": "pretrained/test_finetune.py::test_several_texts_may_have_any_lengths",
    "the same call resumes from it": "pretrained/test_finetune.py::test_what_was_interrupted_stays_trained_and_goes_on_from_its_checkpoint",
    "overfit (every number)": PLAIN,
    "shifted by a random number of positions": "encodings/test_augment.py::test_pose_draws_each_cut_and_each_skip_equally_often",
}
CLUSTER = {
    "is the same with every engine": "lab/test_ray.py::test_a_comparison_measures_the_same",
    "worker processes, one thread each": PLAIN,
    "tasks of Ray, one thread each": PLAIN,
    "each worker loads the model once": PLAIN,
    "(`ray://`) is refused": "lab/test_engines.py::test_options_that_do_not_serve",
    "needs the same torch and Python": "lab/test_ray.py::test_errors_come_as_they_are",
    "the same name must work everywhere": "lab/test_ray.py::test_an_evaluation_measures_the_same",
    "**No shared folder** is needed": PLAIN,
    "The same command resumes.": "lab/test_ray.py::test_a_killed_driver_goes_on_where_it_was",
}
HUGGINGFACE = {
    "as for any model": "pretrained/test_hf.py::test_a_trainer_trains_saves_resumes_and_the_model_writes",
    "`packing=True` on any device": "test_examples.py::test_trl_trains_a_llama_with_another_encoding_in_packed_rows",
    "caches of every kind": "pretrained/test_hf.py::test_a_static_cache_and_given_positions",
    "compiled, only without a mask": "pretrained/test_hf.py::test_documents_packed_by_a_mask_are_read_as_alone_or_refused",
    "- Refused:": "pretrained/test_hf.py::test_refusals_name_the_encoding_and_the_reason",
    "is refused by transformers' own constructor": "pretrained/test_hf.py::test_a_family_that_is_not_served_is_refused_by_transformers",
}
EXPORT = {
    "with any options but `attention_factor`": "pretrained/test_agreement.py::test_the_options_of_a_schedule_are_written",
    "which it reads from no file": "pretrained/test_gguf_file.py::test_llama_cpp_computes_an_attention_factor_and_other_betas",
    "*plain* transformers loads it to the same logits": "pretrained/test_export.py::test_every_static_schedule_comes_back_from_plain_transformers",
    "| every other schedule": "pretrained/test_export.py::test_every_static_schedule_comes_back_from_plain_transformers",
    "for Phi-3 any but another base": "pretrained/test_export.py::test_every_model_type_comes_back",
    "| position maps, log-n, softmax_n | nothing": "pretrained/test_export.py::test_the_report_has_what_a_configuration_cannot_say",
    "transformers 4 then computes the same": "pretrained/test_readers.py::test_a_file_of_transformers_5_read_by_4_has_its_base_and_no_schedule",
    "names who computes the same": "pretrained/test_readers.py::test_the_same_is_of_programs_that_were_asked",
    "with learned frequencies or any schedule": "pretrained/test_rope_config.py::test_llamas_rotary_module_turns_as_the_encoding",
    "one set of frequencies for all heads": PLAIN,
    "anything else is refused": "pretrained/test_rope_config.py::test_what_a_configuration_cannot_say_is_refused",
    "set on a model in memory change no frequencies": "pretrained/test_doctor.py::test_a_scaling_that_is_set_after_loading",
    "needs nothing but the folder": "pretrained/test_export.py::test_no_program_needs_more_than_the_folder",
    "supports only the half layout": "pretrained/test_export.py::test_vllm_has_no_longrope_for_neighbouring_channels",
    "Neither supports position maps": PLAIN,
    "of plain transformers where one computes the same": "pretrained/test_plain_form.py::test_a_model_that_computes_something_else_is_not_written",
    "| one rotation in all layers |": "pretrained/test_plain_form.py::test_the_same_logits_in_plain_transformers",
    "| the same window in all layers |": "pretrained/test_plain_form.py::test_the_same_logits_in_plain_transformers",
    "Everything else is refused in one line": "pretrained/test_plain_form.py::test_what_cannot_be_written_is_one_line",
    "that the base cannot have is refused": "pretrained/test_adapters.py::test_entries_that_cannot_be_applied_are_refused",
    "and `doctor` names it on any model": "pretrained/test_adapters.py::test_one_line_where_the_model_has_another_extension",
    "that has no `task_type`": "pretrained/test_adapters.py::test_the_extension_is_in_the_folder_and_applied",
    "merges its adapters and writes none": "pretrained/test_finetune.py::test_lora_is_merged_into_attention_and_nothing_else_moves",
    "reads the files of each of these types": "pretrained/test_gguf_file.py::test_what_is_written_without_a_tokenizer_is_read",
    "so that llama.cpp needs no flags": "pretrained/test_gguf_file.py::test_llama_cpp_computes_every_architecture_and_schedule",
    "Only Llama, Mistral and Phi-3 read divisors": "pretrained/test_export.py::test_llama_cpp_reads_no_divisors_for_most_architectures",
    "with any attention factor": "pretrained/test_gguf_file.py::test_llama_cpp_computes_an_attention_factor_and_other_betas",
    "of YaRN from no file of these types": PLAIN,
    "other ones are written as divisors, or refused": "pretrained/test_gguf_file.py::test_refusals",
    "documents of 1000 tokens retrieved by their last 128": "pretrained/test_learned_table_real.py::test_minilm_finds_texts_by_what_truncation_has_cut_off",
}
DOCTOR = {
    "Where it fails, that is no finding": "pretrained/test_doctor.py::test_a_rule_of_thumb_that_fails_is_no_fault",
    "each is named, and nothing else is": "pretrained/test_computed.py::test_a_deliberate_mistake_is_named_and_nothing_else_is",
    "none has a finding": "pretrained/test_doctor.py::test_no_alarm_at_a_clean_model_of_each_type",
    "can use wrong positions without any error": "pretrained/test_computed.py::test_a_deliberate_mistake_is_named_and_nothing_else_is",
    "reports each finding with a measured number": "pretrained/test_doctor.py::test_it_reads_well_as_text_and_json",
    "each attention layer is called once more": "pretrained/test_computed.py::test_every_layer_is_computed_or_named_as_unchecked",
    "as far as the first layer of each kind": "pretrained/test_computed.py::test_a_window_that_is_not_applied",
    "nothing rotated, queries or keys alone": "pretrained/test_computed.py::test_a_deliberate_mistake_is_named_and_nothing_else_is",
    "published configurations and each model type": "pretrained/test_recorded.py::test_model_types_are_read_as_recorded",
    "of a program of which neither does": "pretrained/test_readers.py::test_one_program_is_no_agreement",
    "Where nobody differs": "pretrained/test_readers.py::test_the_same_is_of_programs_that_were_asked",
    "findings that need no weights": "pretrained/test_readers.py::test_findings_need_no_weights",
    "keys that nobody reads": "pretrained/test_readers.py::test_fields_that_transformers_does_not_read",
    "The training's numbers stay the same": "pretrained/test_training_batches.py::test_training_is_the_same_with_the_callback",
    "only in a call with `use_cache=False`": "pretrained/test_training_batches.py::test_packed_texts_with_a_mask_stop_the_training",
    "if no schedule states the stretch": PLAIN,  # what is not detected
    "any wrong base without a tokenizer": PLAIN,
    "with its formula under `yarn` only": PLAIN,
    "- Refused:": "pretrained/test_doctor.py::test_what_cannot_be_examined_is_refused",
    "row 0 of the table, which was never trained": PLAIN,
    "each has a severity, a meaning and a remedy": "pretrained/test_doctor.py::test_the_help_explains_each_finding",
}
EVALUATE = {
    "all tables and results": PLAIN,
    "32 prompts at each depth": "lab/evals/test_measured.py::test_the_document_shows_the_table_that_was_measured",
    "No position map improves the middle": "test_absolute_sentences.py::test_no_position_map_improves_the_middle",
    "one in the middle or the last in none": "test_absolute_sentences.py::test_pairs_and_documents_are_retrieved_as_the_page_says",
    "With 10, 20 or 30 documents no answer is right": "test_absolute_sentences.py::test_pairs_and_documents_are_retrieved_as_the_page_says",
    "and the fastest not at all": PLAIN,  # NTK's formula
    "Truncating the input is better than any stretch": "test_absolute_sentences.py::test_truncating_is_better_than_any_stretch",
    "shows nothing past it": PLAIN,
    "Every flag overrides the preset": "cli/test_settings.py::test_flags_win_over_the_file_and_the_file_over_defaults",
    "Two baselines are always included": "lab/evals/test_evaluate.py::test_results_hold_every_number",
    "the same on truncated input": "lab/evals/test_reader.py::test_truncation_is_the_end_of_the_text",
    "every position one higher": "lab/evals/test_evaluate.py::test_the_control_does_nothing",
    "to `truncation` on the same documents": "lab/evals/test_measured.py::test_the_tables_and_the_picture_past_the_trained_length_are_those_of_the_results",
    "all asked for after one pass": "tasks/test_facts.py::test_in_noise_every_question_is_of_the_same_text",
    "each token of running text": "tasks/test_perplexity.py::test_a_full_text_scores_every_token_that_something_precedes",
    "all, in sliding windows, or the last ones": "tasks/test_perplexity.py::test_sliding_windows_and_both_weightings_are_those_of_the_yarn_script",
    "each length has other prompts": "tasks/test_task.py::test_every_length_has_its_own_prompt",
    "moves the answer within the same material": "tasks/test_task.py::test_depths_share_their_material_and_move_the_needle",
    "nothing is generated": "lab/evals/test_reader.py::test_outcomes_are_those_of_a_naive_loop",
    "SmolLM2's greedy tokens are all right in": "test_docs_numbers.py::test_what_both_scores_of_ruler_are",
    "`control` every answer scores as before": "test_docs_numbers.py::test_what_both_scores_of_ruler_are",
    "the loss of each token, by position": "lab/evals/test_reader.py::test_running_text_is_reported_by_position",
    "Methods are compared on the same prompts, depths on the same material": "tasks/test_task.py::test_depths_share_their_material_and_move_the_needle",
    "Under each method the report shows how much attention": "lab/evals/test_evaluate.py::test_attention_profiles_of_other_methods_remain_where_one_refuses",
}
EXTEND = {
    "Running text was predicted no better than": "test_absolute_sentences.py::test_no_method_predicts_running_text_better_than_truncation",
    "All findings.": PLAIN,
    "| only the weights, run in Python |": "pretrained/test_extend.py::test_what_the_report_promises_is_what_happens",
    "has no position beyond the context length": "pretrained/test_nbce.py::test_a_context_longer_than_the_model_is_warned_of",
    "does all of this in one command": "pretrained/test_cli_models.py::test_extend_measures_what_it_did",
    "All methods, with results": PLAIN,
}
CONVERT = {
    "Loading one layout's weights into the other raises no error": "pretrained/test_layout_real.py::test_smollm2_says_the_same_in_either_layout_and_nonsense_unconverted",
    "| grouped-query keys, biases | nothing": "pretrained/test_layout.py::test_partial_rotary_with_biases_is_glm",
    "| a LoRA adapter (PEFT) | nothing": "pretrained/test_layout.py::test_a_lora_adapter_is_converted_with_its_weight",
}
MEASURE = {
    "the same command resumes after Ctrl-C or a crash": "lab/test_compare.py::test_a_killed_comparison_resumes_and_leaves_no_worker",
    "on the same bytes, ± half": "lab/test_training.py::test_evaluation_is_paired",
    "are too few to conclude anything": PLAIN,
    "the same on truncated input": "lab/evals/test_reader.py::test_truncation_is_the_end_of_the_text",
    "neither is measurably faster": PLAIN,
    "your own encoding in all of these": PLAIN,
}
BENCH = {
    "There ALiBi is faster than no position": "test_absolute_sentences.py::test_alibi_is_faster_than_no_position_from_2048_tokens_on",
    "one CPU, no GPU": "test_absolute_sentences.py::test_the_benchmark_is_of_a_cpu",
    "Time over the same module without any position": PLAIN,
    "All tables have more lengths": PLAIN,
    "(every number)": "lab/bench/test_frontier.py::test_the_page_has_the_table_of_the_results",
    "examine every pair of tokens": PLAIN,
    "The *limit* is the same module": PLAIN,
    "(against a copy of the same bytes)": PLAIN,
    "the backward pass to the input and every weight": PLAIN,
    "each candidate's outputs, in `train` also the gradients": "lab/bench/test_run.py::test_who_disagrees_is_not_timed",
    "Every candidate runs once per round": "lab/bench/test_harness.py::test_every_round_holds_every_candidate_in_another_order",
    "A candidate that gives no sign": "lab/bench/test_harness.py::test_a_candidate_that_hangs_is_stopped_and_the_others_are_measured",
}
VISION_LAB = {
    "Accuracy of every encoding at every size": "lab/bench/test_vision_resolution.py::test_the_tables_of_the_page_are_those_of_the_results",
    "only positions determine the class": "lab/vision/test_places.py::test_of_the_same_bag_of_patches_every_class_is_as_likely",
    "At half the size each model": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "Every fifth image of each class": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "The same images at 16, 32, 48": "lab/vision/test_places.py::test_sizes_are_renderings_of_one_scene",
}
VISION_PRETRAINED = {
    "Models with 2D RoPE need no change": PLAIN,
    "RoPE-Mixed | nothing": "pretrained/test_vision_timm.py::test_the_default_of_each_model_is_that_of_the_page",
    "the default follows each model's source": "pretrained/test_vision_timm.py::test_the_default_of_each_model_is_that_of_the_page",
    "have no tables for images that are not square": "pretrained/test_vision_resize.py::test_what_cannot_be_is_refused_and_changes_nothing",
    "timm has them in all models": "pretrained/test_vision_timm.py::test_it_is_timm_at_the_new_size",
}
LEADERBOARD = {
    ", does no harm |": "lab/test_experiments.py::test_budgets_of_a_text_go_from_shares_to_the_page",
    "guessing (the most common answer) at 0": PLAIN,
    "of text, of the loss, with that": PLAIN,
    "on which nobody came a tenth of that way is left out": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "where nobody came a tenth of the way from guessing to all right": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "from 95 % on nearly all": "test_page_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "makes nothing equal": PLAIN,
    "from the same weights, learn from the same batches": "lab/test_transformer.py::test_the_host_starts_the_same_under_every_encoding_and_queries_make_up_for_scale",
    "only the encoding, with its own parameters, differs": "lab/test_training.py::test_every_encoding_sees_the_same_batches",
    "All pairs are compared on the same test sequences": "lab/test_compare.py::test_differences_are_of_common_seeds",
    "A level curve on text does no harm": PLAIN,
    "none has a measurably lower loss": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "By a rule over all sizes, budgets and corpora": "test_readme_numbers.py::test_the_advice_is_that_of_the_rule",
    "ten encodings that are much used (at both lengths), or all": "test_readme_numbers.py::test_the_advice_is_that_of_the_rule",
    "In each setting the field": "test_readme_numbers.py::test_the_advice_is_that_of_the_rule",
    "Where no encoding is, the table has": "lab/synthetic/test_leaderboard_page.py::test_advice_names_its_exceptions",
    "The rule says nothing of": PLAIN,
    "## Every encoding": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "Every score, with its interval": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "parity at 128 symbols, where nobody": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "addition at 32 digits, where nobody": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "| `none` | no positional encoding": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "context on the same bytes": "lab/test_training.py::test_evaluation_is_paired",
    "encodings have no position parameters, and their losses": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "gains from far context in none": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "*does no harm*": "lab/test_compare.py::test_verdicts",
    "With 2000 steps all learn it": "test_readme_numbers.py::test_stick_breaking_and_what_more_training_does",
    "Each finding, with its number": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "by all 4 seeds 886": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "One training each says little": PLAIN,
    "learns nothing at first, and then all": PLAIN,
    "and 7 encodings had none": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "on the same processor, eight models": PLAIN,
    "All of it (`--share 1/2`": "lab/synthetic/test_leaderboard.py::test_shares_of_several_tasks_add_up",
    "trains only your encoding": "lab/synthetic/test_archive.py::test_an_encoding_is_placed_in_the_table",
    "On each task the baseline is trained again": "lab/test_behaviour.py::test_another_machines_run_is_repeated_and_its_difference_stated",
}
ABLATIONS = {
    "Each ablation changes one part": PLAIN,
    "all else is as in the leaderboard": "lab/synthetic/test_leaderboard_page.py::test_all_parts_are_the_encoding",
    "The tables have every number": "lab/synthetic/test_leaderboard_page.py::test_the_tables_of_the_ablations_are_those_of_the_results",
    "At 32 symbols all four": "test_absolute_sentences.py::test_the_ablations_have_the_numbers_of_their_tables",
    "A code for each position that is fixed": "lab/synthetic/test_leaderboard_page.py::test_recurrent_codes_follow_the_cell",
    "hardly better than no positions": "test_absolute_sentences.py::test_the_ablations_have_the_numbers_of_their_tables",
    "each of its rows has learned little": PLAIN,
    "Each code is computed from the one before": PLAIN,
    "Every subset is trained": "lab/synthetic/test_leaderboard_page.py::test_ablations_are_of_encodings_that_can_be_made",
    "(all sixteen)": PLAIN,
    "Any one term of position": "test_absolute_sentences.py::test_one_term_of_position_brings_most_of_what_all_bring",
    "against all four this is undecided": "test_absolute_sentences.py::test_the_ablations_have_the_numbers_of_their_tables",
    "on all distances share a vector": PLAIN,
    "each with more pairs to learn from": PLAIN,
    "which training never reaches": PLAIN,  # 128 bytes
    "the difference from all (1.489) is not measurable": "test_absolute_sentences.py::test_the_ablations_have_the_numbers_of_their_tables",
    "with all learning rates divided": PLAIN,
    "the best of the three for every encoding": "test_absolute_sentences.py::test_the_standard_rates_are_the_best_of_three",
    "The same ten with 4 times": "lab/test_experiments.py::test_the_leaders_are_those_of_the_leaderboard",
    "The best are nearer to each other": "test_page_numbers.py::test_sentences_have_the_numbers_of_the_results",
}
LONGER = {
    "Of four passkeys none is found at": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "no method beat truncation here": "test_absolute_sentences.py::test_no_method_predicts_running_text_better_than_truncation",
    "it finds none (0 to 49 %)": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "at most one of three answers right": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "where truncation removes nothing needed": PLAIN,
    "## Every method, on a small model": "lab/evals/test_measured.py::test_the_tables_and_the_picture_past_the_trained_length_are_those_of_the_results",
    "!The loss of each method by position": "lab/evals/test_measured.py::test_the_tables_and_the_picture_past_the_trained_length_are_those_of_the_results",
    "All tables have four tasks": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "with no right answer": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "so nothing farther back could help": PLAIN,
    "the same eight pieces give": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "of the lowest loss at every length": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "copies 24 points more of a text repeated every 16": PLAIN,
    "the others see all, with base 1,000,000": "pretrained/test_gemma.py::test_it_is_read_as_published",
    "under every schedule and position map": "pretrained/test_gemma.py::test_every_method_acts_on_the_layers_without_a_window_alone",
    "no distance leaves a window": PLAIN,
    "drops every layer's rotation": "pretrained/test_gemma.py::test_every_method_acts_on_the_layers_without_a_window_alone",
    "it computes the same in plain transformers": "pretrained/test_gemma.py::test_written_it_computes_the_same_in_plain_transformers_and_llama_cpp",
    "and any number of parts that act on": "pretrained/test_extend.py::test_methods_that_are_refused",
    "`posenc list` shows them all": "docs/test_program.py::test_every_kind_is_listed_under_its_heading",
    "(every map, other methods)": PLAIN,
    "KV caches of any kind": "pretrained/test_attach.py::test_however_it_is_run_the_logits_are_the_same",
    "Options that do not reach the new length are refused": "pretrained/test_extend.py::test_lengths_that_are_refused",
    "(safetensors or GGUF, never pickles, never code)": "hostile/test_files_models.py::test_a_pickle_is_never_opened",
    "nats are of stories15M (every number)": "lab/evals/test_measured.py::test_the_tables_and_the_picture_past_the_trained_length_are_those_of_the_results",
    "divides each key head's positions": "pretrained/test_ms_poe.py::test_scales_and_logits_are_those_of_brute_force",
    "`python` (posenc) has all": "lab/evals/test_auto.py::test_methods_that_the_program_cannot_express_are_not_tried",
    "Every method is evaluated on the same documents": "lab/evals/test_auto.py::test_weak_methods_read_fewer_texts_and_all_read_the_same_ones",
    "All candidates are evaluated on 2 documents": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "Bonferroni over all candidates": "lab/evals/test_auto.py::test_the_cheapest_of_those_that_are_not_distinguishable_from_the_best_is_chosen",
    "Where no method is distinguishable from truncation": "lab/evals/test_auto.py::test_the_choice_is_applied_and_truncation_leaves_the_model_as_it_was_loaded",
    "The minutes make the plan, and nothing else": "lab/evals/test_auto.py::test_rounds_double_the_texts_halve_the_methods_and_take_the_minutes",
    "before any method is measured": "lab/evals/test_auto.py::test_rounds_double_the_texts_halve_the_methods_and_take_the_minutes",
    "No clock ends a round": "lab/evals/test_auto.py::test_the_same_call_takes_the_plan_in_the_folder_and_another_one_what_was_measured",
    "Two runs with the same `--minutes`": PLAIN,
    "the same command goes on from the folder": "lab/evals/test_auto.py::test_the_command_goes_on_after_sigterm_and_saves_the_choice",
    "measures only what is new": "lab/evals/test_auto.py::test_the_same_call_takes_the_plan_in_the_folder_and_another_one_what_was_measured",
    "under the rule of all studies": PLAIN,
    "neither is distinguishable from truncation, so the choice is a schedule": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "the best on 4 documents": "lab/evals/test_measured.py::test_the_tables_of_auto_are_those_of_the_results",
    "nothing farther back can help, and the answer is `truncate`": "lab/evals/test_measured.py::test_the_tables_of_auto_are_those_of_the_results",
    "on 8 documents no method is distinguishable": "lab/evals/test_measured.py::test_the_tables_of_auto_are_those_of_the_results",
    "Granite and others (all)": "pretrained/test_models.py::test_the_page_names_every_type",
    "(no configuration changes their frequencies)": "pretrained/test_models.py::test_refusals",
    "so fit where only frequencies can be set": PLAIN,
    "the frequency of each pair is": PLAIN,
    "gains nothing measurable on repeated text": "test_docs_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "On SmolLM2 nothing was gained": "test_absolute_sentences.py::test_the_fit_of_smollm2_returned_yarn",
    "Only the logarithm of each pair's stretch is learned": "pretrained/test_fit.py::test_restore_undoes_a_fit_and_a_repeated_fit_is_equal",
    "All options:": PLAIN,
    "for all layers and heads, `longrope`": "pretrained/test_fit.py::test_stretches_are_found_again",
    "the same call resumes": "pretrained/test_fit.py::test_an_interrupted_fit_resumes_from_its_checkpoint",
}
VISION_GRID = {
    "Packed images give the same results as each alone": "lab/test_vision_transformer.py::test_packed_images_are_as_if_alone",
    "every image spans -1 to 1": "encodings/test_rotary_axes.py::test_axial_rope_is_dinov3",
    "refused;": "encodings/test_window.py::test_refusals",
    "in units of the training window": "encodings/test_window.py::test_refusals",
    "take images only, the others video too": "test_absolute_sentences.py::test_tables_and_swin_v2_take_images_only",
    "has no place before or after": "positions/test_placed.py::test_moved_patches_leave_the_tokens_before_them_without_a_place",
    "No coordinate is reserved": "positions/test_placed.py::test_every_coordinate_counts",
    "which every derived object carries": "positions/test_placed.py::test_derived_positions_carry_it",
    "each axis has the frequencies of its width": "encodings/test_axes_of_models.py::test_each_axis_has_its_section_base_and_schedule",
    "has the pairs of each": "encodings/test_axes_of_models.py::test_each_axis_has_its_section_base_and_schedule",
    "no place |": "encodings/test_axes_of_models.py::test_axial_rope_is_diffusers",
    "on every axis |": "encodings/test_axes_of_models.py::test_axial_rope_is_diffusers",
    "by a scale of each axis": "encodings/test_axes_of_models.py::test_axial_rope_is_diffusers",
    "which is no rotation": PLAIN,
    "| the same, ending at the frequency 1/base |": PLAIN,
    "in each": PLAIN,
    "the same number on all three axes": "pretrained/test_multimodal.py::test_rows_are_their_loops",
    "all tokens so far": PLAIN,
    "the largest number on any axis": "pretrained/test_multimodal.py::test_rows_are_their_loops",
    "the same, frames at seconds": "pretrained/test_multimodal.py::test_time_is_rounded_as_in_transformers",
    "| the same | `tokens_per_second": "pretrained/test_multimodal.py::test_options_are_those_of_the_loops",
    "each frame is an image": "pretrained/test_multimodal.py::test_positions_are_those_of_transformers",
    "no sizes needed": "pretrained/test_multimodal.py::test_v2pe_needs_no_sizes",
    "as far from every text token": "pretrained/test_multimodal.py::test_a_circle_is_its_loop_and_as_far_from_every_text_token",
    "images only": "pretrained/test_multimodal.py::test_bad_input_is_named",
    "in every family listed": "pretrained/test_multimodal.py::test_positions_are_those_of_transformers",
    "has its circle in every other layer": PLAIN,
    "LTX-Video has other frequencies in each head": PLAIN,
}
CLAIMS = {
    "each with a verdict": "lab/synthetic/test_leaderboard_page.py::test_findings_are_of_what_is_compared",
    "data-all=": PLAIN,
    "Selective attention predicts better than the same without it": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "has no sense of order": PLAIN,
    "none of 200 000 codes repeats": "test_claims.py::test_the_page_has_every_number",
    "Only the first channels hold the position": "test_claims.py::test_the_page_has_every_number",
    "With 64 channels it first rises at distance 6": "test_claims.py::test_the_page_has_every_number",
    "None of 256 random words": "test_guide.py::test_snippets_print_and_draw_what_the_page_shows",
    "nothing is lost if both use few directions": PLAIN,
    "A product has no part that is position alone": PLAIN,
    "nearly the same in long ones": "test_page_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "found nearly identical results": PLAIN,
    "In MiniLM the main directions": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
    "is first preferred at distance 1707": "test_page_numbers.py::test_sentences_have_the_numbers_of_the_results",
    "only the slowest pair is stretched by k": PLAIN,
    "none of 22 methods is better than the unmodified stories15M": "test_absolute_sentences.py::test_no_method_predicts_running_text_better_than_truncation",
    "All heads share their weights": PLAIN,
    "Each has separate projections": PLAIN,
    "Each finding was written down": "lab/synthetic/test_leaderboard_page.py::test_findings_are_of_what_is_compared",
    "that a training learns at once or not at all": "lab/synthetic/test_leaderboard_page.py::test_the_tables_are_those_of_the_results",
    "Numbers of claims that have no link": "test_claims.py::test_the_page_has_every_number",
    "a GRU has the lower loss": "test_claims.py::test_the_recurrent_networks_numbers_are_those_of_the_results",
    "2.1 times RoPE's processor time": "test_claims.py::test_the_recurrent_networks_numbers_are_those_of_the_results",
    "| GRU, no encoding |": "test_claims.py::test_the_recurrent_networks_numbers_are_those_of_the_results",
    "each timed step of 2048 bytes": PLAIN,
    "none of the three gains": "test_claims.py::test_the_recurrent_networks_numbers_are_those_of_the_results",
}
PAGES = {
    "README.md": README,
    "SECURITY.md": SECURITY,
    "docs/attention.md": ATTENTION,
    "docs/cluster.md": CLUSTER,
    "docs/compare.md": COMPARE,
    "docs/data.md": DATA,
    "docs/design.md": DESIGN,
    "docs/distributed.md": DISTRIBUTED,
    "docs/export.md": EXPORT,
    "docs/finetune.md": FINETUNE,
    "docs/huggingface.md": HUGGINGFACE,
    "docs/reliability.md": RELIABILITY,
    "docs/guides/padding-packing-caches.md": PADDING,
    "docs/guides/your-model.md": MODEL,
    "docs/longer_context.md": LONGER,
    "docs/ablations.md": ABLATIONS,
    "docs/leaderboard.md": LEADERBOARD,
    "docs/vision-pretrained.md": VISION_PRETRAINED,
    "docs/vision-grid.md": VISION_GRID,
    "docs/vision-lab.md": VISION_LAB,
    "docs/bench.md": BENCH,
    "docs/guides/measure.md": MEASURE,
    "docs/guides/convert.md": CONVERT,
    "docs/guides/extend.md": EXTEND,
    "docs/evaluate.md": EVALUATE,
    "docs/doctor.md": DOCTOR,
    "docs/claims.md": CLAIMS,
}


GUIDE = {
    "Of 256 random words": "test_guide.py::test_snippets_print_and_draw_what_the_page_shows",
    "it improves the right answers above by 12 points": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
    "20 steps on all weights take the loss": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
    "YaRN, which needs no training, has 1.39": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
    "in all of four documents, under YaRN, dual chunks or Self-Extend": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
    "by more than 0.011 nats": "test_guide.py::test_every_number_comes_from_a_snippet_or_a_linked_page",
}
HELP = {
    "A comparison that was stopped continues": "lab/test_compare.py::test_a_killed_comparison_resumes_and_leaves_no_worker",
    "An evaluation that was stopped continues": "hostile/test_stopped_commands.py::test_a_stopped_command_leaves_nothing_and_goes_on",
    "A benchmark that was stopped continues": "hostile/test_stopped_commands.py::test_a_stopped_command_leaves_nothing_and_goes_on",
    "lets the same command go on after Ctrl-C": "pretrained/test_fit.py::test_an_interrupted_fit_resumes_from_its_checkpoint",
    "with --out, the same command goes on": "lab/evals/test_auto.py::test_the_command_goes_on_after_sigterm_and_saves_the_choice",
    "so that the same command continues from there": "pretrained/test_finetune.py::test_what_was_interrupted_stays_trained_and_goes_on_from_its_checkpoint",
    "The unmodified model comes first (none)": "lab/evals/test_evaluate.py::test_results_hold_every_number",
    "Checks that fail for the same reason share a line": "conformance/test_suite.py::test_equal_failures_share_a_line",
    "which changes no frequencies": "pretrained/test_doctor.py::test_a_scaling_that_is_set_after_loading",
    "Every model leaks, without this finding": "pretrained/test_training_batches.py::test_packed_texts_with_a_mask_stop_the_training",
    "The report has the remedy of each finding": "pretrained/test_doctor.py::test_the_help_explains_each_finding",
}
DERIVED = {
    "1. Dog bites man": 7,
    "2. What an encoding should satisfy": 9,
    "3. From a binary counter to sines": 8,
    "4. Moving by a matrix": 3,
    "5. Dot products that decay": 8,
    "6. Add or concatenate?": 8,
    "7. The four terms of a score": 5,
    "8. Why sines at all?": 9,
    "9. Rotating instead of adding": 11,
    "10. A penalty on distance": 9,
    "11. Digits in base β": 7,
    "12. Past the training length": 5,
    "13. How long position survives": 6,
    "14. Sixteen bits": 3,
    "15. Relatives, one by one": 11,
    "16. Long contexts": 10,
    "17. More than a line": 5,
    "18. How to choose": 1,
    "posenc list": 4,
    "posenc compare": 11,
    "posenc analyze": 1,
    "posenc extend": 22,
    "posenc eval": 11,
    "posenc doctor": 34,
    "posenc check": 2,
    "posenc conform": 6,
    "posenc diff": 1,
    "posenc bench": 6,
    "posenc explore": 4,
    "posenc predict": 1,
}
"""How many other absolute sentences a chapter of docs/position_from_scratch.md or a command's help has. Each was read: it defines,
follows from a definition, or says what the snippet beside it prints (tests/test_guide.py). Read it again where a number changes."""


def derived():
    """The absolute sentences of the guide, by chapter, and of the help, by command, that no test is registered for."""
    text = (ROOT / "docs/position_from_scratch.md").read_text(encoding="utf-8")
    found = {
        part.partition("\n")[0]: [each for each in absolute(part) if not any(phrase in each for phrase in GUIDE)]
        for part in text.split("\n## ")
    }
    commands = json.loads((ROOT / "src/posenc_cli/table.json").read_text(encoding="utf-8"))["commands"]
    for name, command in commands.items():
        said = {each for text in texts(command) for each in absolute(text) if " " in each}
        found[f"posenc {name}"] = [each for each in said if not any(phrase in each for phrase in HELP)]
    return found


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def test_every_absolute_sentence_of_the_guide_and_the_help_was_read():
    assert {name: len(found) for name, found in derived().items() if found} == DERIVED
    said = (ROOT / "docs/position_from_scratch.md").read_text(encoding="utf-8")
    said += "".join(texts(json.loads((ROOT / "src/posenc_cli/table.json").read_text(encoding="utf-8"))["commands"]))
    assert [phrase for phrase in (*GUIDE, *HELP) if phrase not in re.sub(r"\s+", " ", said)] == []


def sentences(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return absolute(text[text.index("## Trusted") :] if page == "SECURITY.md" else text)


def absolute(text):
    """The sentences of a text that are absolute, without code, pictures and addresses of links."""
    text = re.sub(r"```.*?```|<picture>.*?</picture>|<img[^>]*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\s+", " ", re.sub(r"\n(?=[|#\n-]|\d+\. )", "\n. ", text))
    return [each for each in re.split(r"(?<=[.;:!?])\s", text) if ABSOLUTE.search(re.sub(r"`[^`]*`", "", each))]


@pytest.mark.parametrize("page", PAGES)
def test_every_absolute_sentence_is_registered(page):
    found, registered = sentences(page), PAGES[page]
    assert [each for each in found if not any(phrase in each for phrase in registered)] == []
    assert [phrase for phrase in registered if not any(phrase in each for each in found)] == []


@pytest.mark.parametrize(
    "test", sorted({test for page in (*PAGES.values(), GUIDE, HELP) for test in page.values()} - {PLAIN})
)
def test_the_test_of_a_sentence_exists(test):
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_no_method_predicts_running_text_better_than_truncation():
    compared = 0
    for path in sorted((ROOT / "benchmarks/evaluations").glob("longer_*.json")):
        for part in json.loads(path.read_text(encoding="utf-8"))["longer"]:
            rows = [row for task in part["tasks"] if task["task"].startswith("perplexity") for row in task["rows"]]
            for row in rows:
                if (difference := row["against_truncation"]) is not None:
                    assert difference["high"] >= 0, (path.name, part["length"], row["method"])
                    compared += 1
    assert compared > 50
    (part, *_) = json.loads((ROOT / "benchmarks/evaluations/longer_stories15M.json").read_text(encoding="utf-8"))[
        "longer"
    ]
    (task,) = [each for each in part["tasks"] if each["task"].startswith("perplexity")]
    methods = {row["method"] for row in task["rows"]} - {"none", "truncation"}
    assert f"none of {len(methods)} methods" in (ROOT / "docs/claims.md").read_text(encoding="utf-8")


def test_the_benchmark_is_of_a_cpu():
    assert [path.name for path in (ROOT / "benchmarks/results").iterdir()] == ["cpu.json"]


def test_tables_and_swin_v2_take_images_only():
    """The encodings of the page's table, on a video."""
    page = (ROOT / "docs/vision-grid.md").read_text(encoding="utf-8")
    table = page[page.index("## At another resolution") : page.index("take images only")]
    names = [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    video, x = Positions.grid(4, 4, frames=2), torch.randn(1, 32, 96)
    refused = set()
    for name in names:
        encoding = posenc.create(name, dim=96, num_heads=4, head_dim=24, grid=(2, 4, 4))
        q = x.unflatten(-1, (4, 24)).transpose(1, 2)
        try:
            encoding.effects(video).embedded(x)
            posenc.attention(q, q, q, encoding, video)
        except posenc.InputError:
            refused.add(name)
    assert len(names) == 12
    assert refused == {"grid_table", "swin", "beit", "swin_v2"}


def test_the_version_of_datasets_that_runs_no_code_is_required():
    assert re.search(r'"datasets>=([4-9]|\d\d)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def evaluation(name):
    return json.loads((ROOT / f"benchmarks/evaluations/{name}.json").read_text(encoding="utf-8"))["tasks"]


def test_no_position_map_improves_the_middle():
    """Neither what is retrieved of all facts nor how far the middle is behind the ends."""
    none, softmax, *maps = evaluation("lost_in_the_middle")[0]["methods"]
    assert [none["method"], softmax["method"], len(maps)] == ["none", "softmax_n", 3]
    base, found = none["by_length"][0], [method["by_length"][0] for method in maps]
    assert all(each["against_none"]["exact"]["low"] < 0 < each["against_none"]["exact"]["high"] for each in found)
    assert all(each["middle"]["low"] < base["middle"]["mean"] for each in found)
    hits = sorted(each["exact"]["hits"] for each in found)
    text = (ROOT / "docs/evaluate.md").read_text(encoding="utf-8")
    assert (
        f"retrieve {hits[0]} to {hits[-1]} of {base['n']} facts, the unmodified model {base['exact']['hits']}" in text
    )
    assert softmax["by_length"][0]["against_none"]["exact"]["low"] > 0


def test_the_middle_is_behind_both_ends_under_every_method():
    methods = evaluation("lost_in_the_middle")[0]["methods"]
    hits = {method["method"]: [cell["exact"]["hits"] for cell in method["cells"]] for method in methods}
    assert len(hits) == 5
    for name, found in hits.items():
        assert max(found[1:-1]) < min(found[0], found[-1]), name
    assert all(sum(hits["softmax_n"][1:]) > sum(found[1:]) for name, found in hits.items() if name != "softmax_n")


def test_the_fit_of_smollm2_returned_yarn():
    found = json.loads((ROOT / "benchmarks/fit.json").read_text(encoding="utf-8"))
    assert found["smollm2 fit"]["text"] == found["smollm2 yarn"]["text"]


def test_truncating_is_better_than_any_stretch():
    compared = set()
    for task in evaluation("best_stretch"):
        losses = {method["method"]: method["by_length"][0]["loss"]["mean"] for method in task["methods"]}
        truncated = losses.pop("truncation")
        if task["task"] != "copying":  # which the model cannot do: 12 nats under each
            assert truncated < min(losses.values())
            compared.add(task["task"].partition(":")[0])
    assert compared == {"perplexity", "repeated", "facts", "passkey"}


def test_pairs_and_documents_are_retrieved_as_the_page_says():
    tasks = {task["task"]: task["methods"][0]["cells"] for task in evaluation("question_in_front")}
    pairs = tasks["key_value:keys=words:values=digits:pairs=140"]
    assert [(cell["depth"], cell["exact"]["hits"], cell["n"]) for cell in pairs] == [(0, 4, 5), (0.5, 0, 5), (1, 0, 5)]
    for count in (10, 20, 30):
        cells = tasks[f"multi_document:documents={count}"]
        assert [cell["exact"]["hits"] for cell in cells] == [0] * len(cells)


def test_alibi_is_faster_than_no_position_from_2048_tokens_on():
    """Over plain attention, forward and in training; not in decoding."""
    ratios = [
        row["ratio"]["median"]
        for trial in json.loads((ROOT / "benchmarks/results/cpu.json").read_text(encoding="utf-8"))["trials"]
        if (trial["family"], trial["case"], trial["dtype"], trial["what"]) == ("attention", "alibi", "float32", "time")
        and trial["mode"] in ("forward", "train")
        and trial["length"] >= 2048
        for row in trial["rows"]
        if row["name"] == "posenc"
    ]
    assert len(ratios) > 2
    assert max(ratios) < 1


def ablated():
    return json.loads((ROOT / "benchmarks/ablations.json").read_text(encoding="utf-8"))["models"]


def test_one_term_of_position_brings_most_of_what_all_bring():
    terms = {
        name.partition("terms=")[2] or name: level["1"]["mean"]
        for name, level in ablated()["text"]["ablations"]["terms"]["levels"].items()
    }
    all_bring = terms["none"] - terms["c2p|p2c|p2p"]
    for term in ("c2p", "p2c", "p2p"):
        assert terms["none"] - terms[term] > 0.75 * all_bring


def test_the_standard_rates_are_the_best_of_three():
    found = {
        name: models["ten"]["levels"] for name, models in ablated().items() if name in ("text", "rate/3", "rate*3")
    }
    assert len(found) == 3
    for name in found["rate/3"]:
        assert min(found, key=lambda models: found[models][name]["1"]["mean"]) == "text", name


def test_the_ablations_have_the_numbers_of_their_tables():
    page, tables = ((ROOT / folder / "ablations.md").read_text(encoding="utf-8") for folder in ("docs", "benchmarks"))
    numbers = re.findall(r"(?<![\d.])\d+\.\d{3}(?!\d)", page)
    assert len(numbers) > 60
    assert [number for number in numbers if number not in tables] == []
