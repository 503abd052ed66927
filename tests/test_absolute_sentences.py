"""Each sentence of these pages that says all, every, never, no or the same is registered here with the test that proves it."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ABSOLUTE = re.compile(
    r"\b(all|always|any|anything|each|every|exactly|identical|neither|never|no|none|nobody|nothing|only|refused|same)\b",
    re.IGNORECASE,
)
PLAIN = ""
"""Not for a test: what a page leads to, what follows from a definition, or what is said of other programs and links to them."""

README = {
    "Check any function against the paper": PLAIN,
    "all but CoPE in memory linear": "test_readme_numbers.py::test_all_but_one_encoding_take_linear_memory",
    "Your model code stays the same for every encoding": "docs/test_guide_model.py::test_the_guides_model_trains_and_decodes_under_every_encoding",
    "Every encoding is tested against a float64 reference of its formula": "conformance/test_matrix.py::test_every_encoding_has_a_row_of_marks_that_are_true",
    "plain transformers loads to the same logits": "pretrained/test_export.py::test_every_static_schedule_comes_back_from_plain_transformers",
    "The same call handles padding": "test_conformance.py::test_every_encoding_conforms",
    "train a decoder that every inference server runs": "test_readme_numbers.py::test_rope_where_every_server_has_to_run_it",
    "within 0.05 of the best at every size": "test_readme_numbers.py::test_what_trains_short_and_tests_long",
    "no other budget tried": "test_readme_numbers.py::test_what_trains_short_and_tests_long",
    "(under `yarn` none does)": "test_readme_numbers.py::test_dual_chunk_in_python",
    "a rule over every size and budget measured": "test_readme_numbers.py::test_the_advice_is_that_of_the_rule",
    "no method is better than truncating the input": "test_absolute_sentences.py::test_no_method_predicts_running_text_better_than_truncation",
    "in 4 of 4 documents under YaRN, in none without": "test_readme_numbers.py::test_the_passkey_and_the_time_it_takes",
    "method, training, decoding and all lengths": PLAIN,
    "No GPU timings yet": "test_absolute_sentences.py::test_nothing_was_timed_on_a_gpu",
    "No GPU has been timed": "test_absolute_sentences.py::test_nothing_was_timed_on_a_gpu",
    "Each finding in words": "conformance/test_findings.py::test_the_table_matches_the_installed_packages",
    "| ways to extend RoPE |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| bias by distance |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| padding, packing, KV caches |": "test_front_page.py::test_every_cell_of_the_comparison_links_to_its_evidence",
    "| conformance, passed / tested | all, against loops": "test_front_page.py::test_the_readme_counts_what_the_package_has",
    "All of them, with pictures, options, papers and tests": "test_front_page.py::test_the_page_of_encodings_names_every_one",
    "have nearly the same order at 7.5 M": "test_readme_numbers.py::test_the_limits",
}
SECURITY = {
    "worker processes through a folder that only you can read": "test_scratch.py::test_a_temporary_folder_is_read_by_its_user_alone",
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
    "A fault in any of these": PLAIN,
}
ATTENTION = {
    "with any encoding": "test_conformance.py::test_every_encoding_conforms",
    "As a mask of PyTorch's fused kernel": PLAIN,
    "for all encodings but CoPE": "test_readme_numbers.py::test_all_but_one_encoding_take_linear_memory",
    "| none on the scores |": PLAIN,
    "sums of gates, key-gated distances": PLAIN,
    "which all layers that share a `Positions` share": "backends/test_short.py::test_layers_that_share_are_the_reference",
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
    "if no mask is needed, and FlexAttention otherwise": "backends/test_flex.py::test_what_auto_takes",
    "found them right and faster, none so far": "test_absolute_sentences.py::test_nothing_was_timed_on_a_gpu",
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
    "leaves no partial file": "test_scratch.py::test_a_file_and_a_folder_appear_at_the_end",
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
    "each has a lock that its process holds": "test_scratch.py::test_nothing_else_makes_temporary_folders",
    "never those of a live one": "test_scratch.py::test_what_a_killed_process_leaves_goes_and_what_a_live_one_uses_stays",
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
    "positions that live long keep no model": "positions/test_data_alone.py::test_positions_that_live_long_keep_no_encoding",
    "No value of a position means anything but a place": "positions/test_placed.py::test_every_coordinate_counts",
    "that a token has none": "positions/test_placed.py::test_derived_positions_carry_it",
    "forward nothing": PLAIN,
    "Constant tables are never in the `state_dict`": "test_encodings.py::test_tables_stay_out_of_the_state_and_survive_casts",
    "One definition of every bias": "test_terms.py::test_a_structure_is_its_score_mod_in_every_form",
    "never an N x N tensor": PLAIN,
    "Each structure gives one closure": "test_terms.py::test_a_structure_is_its_score_mod_in_every_form",
    "Each kind has the code of every backend": PLAIN,
    "are the same idea for rotations": PLAIN,
    "All are compared with the slow `reference`": "test_conformance.py::test_every_backend_and_sequence_of_variants_conforms",
    "parses all of them into a tree": "test_spec.py::test_a_tree_is_printed_and_read_again",
    "computes the others, stores each at once": "lab/test_study.py::test_what_is_stored_is_not_measured_again_and_what_is_damaged_is",
}
DATA = {
    "Every test passage lies in one file": "lab/test_corpora.py::test_passages_lie_in_one_held_out_file",
    "or else the only column of strings": "lab/test_data_sources.py::test_the_text_column",
    "No loading script and no pickle is run": "lab/test_data_sources.py::test_no_script_and_no_pickle_is_run",
    "the same text for every tokenizer": "lab/test_tokenizers.py::test_every_tokenizer_is_tested_on_the_same_text",
    "or any Hugging Face tokenizer": "lab/test_tokenizers.py::test_hugging_face_tokenizers_end_documents",
    "each has positions from 0 and sees only itself": "lab/test_packing.py::test_packed_training_is_training_on_the_documents_apart",
    "No document is both trained and tested on": "lab/test_packing.py::test_the_cut_is_where_a_document_starts_if_one_starts_near",
}
DISTRIBUTED = {
    "one that cuts heads which share a key head is refused": "distributed/test_heads.py::test_slices_that_are_none_or_cut_groups_are_refused",
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
    "never stores all keys and values": PLAIN,
    "all parameters' gradients equal those of one process": "distributed/test_processes.py::test_every_encoding_is_the_same_on_shards",
}
PADDING = {
    "takes each draft's parent": PLAIN,
    "No table covers the cache": "positions/test_draft_tree.py::test_siblings_share_a_position_and_the_cache_is_in_no_table",
    "Each row may have its parents": "positions/test_draft_tree.py::test_rows_with_caches_of_several_lengths_and_a_tree_each",
    "equals that of each path alone": "positions/test_draft_tree.py::test_each_draft_is_as_its_path_alone",
    "what counts the tokens of a line is refused": "positions/test_draft_tree.py::test_bad_trees",
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
    "trains the same small Transformer on the same text": "lab/test_training.py::test_every_encoding_sees_the_same_batches",
    "the same for generated tasks and images": PLAIN,
    "One seed gives every encoding the same initial weights": "test_transformer.py::test_the_host_starts_the_same_under_every_encoding_and_queries_make_up_for_scale",
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
    "**No shared folder** is needed": "lab/test_ray.py::test_an_evaluation_measures_the_same",
    "The same command resumes.": "lab/test_ray.py::test_a_killed_driver_goes_on_where_it_was",
}
HUGGINGFACE = {
    "as for any model": "pretrained/test_hf.py::test_a_trainer_trains_saves_resumes_and_the_model_writes",
    "`packing=True` on any device": "test_examples.py::test_trl_trains_a_llama_with_another_encoding_in_packed_rows",
    "caches of every kind": "pretrained/test_hf.py::test_cached_padded_and_packed_tokens_are_read_as_alone",
    "compiled, only without a mask": "pretrained/test_hf.py::test_documents_packed_by_a_mask_are_read_as_alone_or_refused",
    "- Refused:": "pretrained/test_hf.py::test_refusals_name_the_encoding_and_the_reason",
    "is refused by transformers' own constructor": "pretrained/test_hf.py::test_types_that_take_no_encoding_refuse_it",
    "So is every family before": "pretrained/test_hf.py::test_other_classes_of_transformers_do_not_take_it_for_a_llama",
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
    "so that llama.cpp needs no flags": "pretrained/test_gguf_file.py::test_llama_cpp_computes_every_architecture_and_schedule",
    "Only Llama, Mistral and Phi-3 read divisors": "pretrained/test_export.py::test_llama_cpp_reads_no_divisors_for_most_architectures",
    "with any attention factor": "pretrained/test_gguf_file.py::test_llama_cpp_computes_an_attention_factor_and_other_betas",
    "of YaRN from no file of these types": PLAIN,
    "other ones are written as divisors, or refused": "pretrained/test_gguf_file.py::test_refusals",
    "documents of 1000 tokens retrieved by their last 128": "pretrained/test_learned_table_real.py::test_minilm_finds_texts_by_what_truncation_has_cut_off",
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
}


def sentences(page):
    """Those that are absolute, without code, pictures and addresses of links."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = text[text.index("## Trusted") :] if page == "SECURITY.md" else text
    text = re.sub(r"```.*?```|<picture>.*?</picture>|<img[^>]*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\s+", " ", re.sub(r"\n(?=[|#\n-]|\d+\. )", "\n. ", text))
    return [each for each in re.split(r"(?<=[.;:!?])\s", text) if ABSOLUTE.search(re.sub(r"`[^`]*`", "", each))]


@pytest.mark.parametrize("page", PAGES)
def test_every_absolute_sentence_is_registered(page):
    found, registered = sentences(page), PAGES[page]
    assert [each for each in found if not any(phrase in each for phrase in registered)] == []
    assert [phrase for phrase in registered if not any(phrase in each for each in found)] == []


@pytest.mark.parametrize("test", sorted({test for page in PAGES.values() for test in page.values()} - {PLAIN}))
def test_the_test_of_a_sentence_exists(test):
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_no_method_predicts_running_text_better_than_truncation():
    compared = 0
    for path in sorted((ROOT / "benchmarks/evaluations").glob("longer_*.json")):
        for part in json.loads(path.read_text(encoding="utf-8"))["longer"]:
            rows = [row for task in part["tasks"] if task["task"].startswith("perplexity") for row in task["rows"]]
            for row in rows:
                if (difference := row["against_cut_off"]) is not None:
                    assert difference["high"] >= 0, (path.name, part["length"], row["method"])
                    compared += 1
    assert compared > 50


def test_nothing_was_timed_on_a_gpu():
    """Neither the kernels that GPUs take by default nor a committed measurement knows of one."""
    assert json.loads((ROOT / "src/posenc/backends/gpus.json").read_text(encoding="utf-8")) == {}
    assert not (ROOT / "benchmarks/gpu-results").exists()
    assert [path.name for path in (ROOT / "benchmarks/results").iterdir()] == ["cpu.json"]


def test_the_version_of_datasets_that_runs_no_code_is_required():
    assert re.search(r'"datasets>=([4-9]|\d\d)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
