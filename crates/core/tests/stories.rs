//! Tells every story in `stories/` again and compares. `UPDATE_STORIES=1 cargo test -p tenure-core --test
//! stories` rewrites what follows the dashes; the difference is then what a reviewer reads.

mod story;

use std::collections::BTreeSet;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stories")
}

fn check(name: &str) {
    let path = folder().join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let printed = story::tell(name, &text);
    if printed == text {
        return;
    }
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::write(&path, printed).expect("the story can be written");
        return;
    }
    let differs = text.lines().zip(printed.lines()).position(|(was, is)| was != is);
    let at = differs.unwrap_or_else(|| text.lines().count().min(printed.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    panic!(
        "the story {name} goes on differently at line {}:\n  was  {}\n  is   {}\n",
        at + 1,
        line(&text),
        line(&printed)
    );
}

/// One test for each story, under the story's own name; and one that none is left out.
macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_story_is_told() {
            let listed: BTreeSet<String> = [$(stringify!($name).to_owned()),*].into();
            let written: BTreeSet<String> = std::fs::read_dir(folder())
                .expect("the stories' folder can be read")
                .filter_map(|file| Some(file.ok()?.path().file_stem()?.to_str()?.to_owned()))
                .filter(|name| name != "README")
                .collect();
            assert_eq!(listed, written);
        }
    };
}

stories! {
    acquire_moves_no_deadline
    arming_needs_the_live_token
    barrier_on_a_free_resource
    cancel_before_arrival
    cancel_while_queued_and_after_the_grant
    cancel_of_a_reentrant_acquire_undoes_only_itself
    cancelled_wait_of_an_implicit_session_ends_it
    closed_sessions_leave_the_queue_and_free_everything
    compare_and_set
    contender_takes_over_a_lapsed_lease
    dead_first_waiter_keeps_nobody_waiting
    dead_waiter_that_is_not_cleared_yet_gets_nothing
    directed_transfer_to_a_ready_session
    ephemeral_registers_go_with_their_session
    every_numbered_command_is_done_once
    everything_due_ends_before_anything_is_granted
    fences_of_waiters_count
    forgotten_number_is_refused
    free_resources_are_forgotten_beyond_a_limit
    given_up_number_leaves_the_queue
    grants_name_the_whole_fence_set
    guard_is_fixed_by_the_first_guarded_write
    guarded_write_needs_a_live_exclusive_token
    hang_up_beside_a_nonce_takes_nothing_back
    hang_up_of_the_last_transmission_undoes_the_grant
    hang_up_undoes_only_what_its_own_transmission_did
    head_of_queue_waits_for_all_and_is_not_overtaken
    history_is_bounded_by_bytes_over_all_resources
    history_is_bounded_by_count_and_age
    history_keeps_its_old_bounds_until_the_upgrade
    holder_confirms_a_notice
    implicit_session_ends_with_a_refusal_or_a_time_out
    implicit_session_ends_with_its_last_lease
    implicit_session_that_waited_was_not_opened_by_its_grant
    kind_is_fixed_by_the_first_grant
    kind_of_a_queue_before_the_first_grant
    lapse_and_revival
    lapse_that_is_not_cleared_yet
    lapsed_session_that_gave_back_its_lease_has_no_hard_limit
    late_renewal_revives_nothing
    limits_are_refused_by_name
    limits_of_registers_are_refused_by_name
    limits_of_what_is_remembered
    queue_moves_on_when_a_waiter_for_several_leaves
    lock_delay_after_unclean_ends_only
    mass_expiry_is_cut_into_portions
    maximum_hold_ends_by_notice
    events_are_repeated_until_they_are_seen
    no_circle_among_those_who_take_several
    nonce_belongs_to_one_holder_and_ttl
    nonce_opens_one_session
    one_revision_for_each_command
    paused_holder_and_new_leader_are_reported
    plain_acquires_of_a_plain_session
    priority_never_takes_from_a_holder
    proof_of_death_skips_the_delay_of_armed_fences
    reentrance_is_counted_only_if_asked_for
    refusals_are_remembered_too
    refusals_are_reported_once_a_second
    refused_acquire_ends_no_lapsed_session
    release_serves_the_queue_in_order
    release_with_a_rest
    renewal_answer_tells_what_its_own_entry_did
    renewal_in_the_same_entry_beats_expiry
    repeated_open_gives_the_full_ttl_that_it_promises
    restored_cluster_grants_nothing_for_a_while
    retried_acquire_gets_the_first_answer
    retried_close_finds_no_session
    revoke_goes_by_notice
    revoke_now_takes_a_token_without_a_holder
    revoking_a_lapsed_lease_needs_no_notice
    semaphore_has_slots
    session_ids_are_not_reused
    session_is_in_each_queue_once
    several_resources_all_or_none
    sharers_and_writers_take_turns
    snapshot_keeps_everything_that_decides
    stale_renewal_number_sets_nothing
    tokens_end_at_two_to_the_53
    transfer_hands_over_the_same_slot
    ttl_outside_the_limits_is_refused
    unnumbered_calls_repeat_harmlessly
    wait_times_out_in_cluster_time
    waiter_dies_with_its_session
    waiter_gets_it_in_the_entry_that_ends_the_lease
    watchers_that_fell_behind_start_again
    acquire_of_several_with_one_forbidden_is_refused_whole
    administrators_need_manage
    expired_credential_keeps_what_it_has_for_a_day
    expiry_is_never_judged
    grant_never_goes_beyond_ones_own
    guarded_write_and_arm_come_from_the_holders_identity
    holder_self_binds_the_name
    policies_do_not_count_until_they_are_enforced
    prefix_ends_at_a_segment
    priority_is_given_by_a_policy
    quotas_are_counted_by_identity_and_prefix
    revoked_credential_does_nothing_more
    right_taken_away_gives_notice
    session_belongs_to_who_opened_it
    transfer_needs_a_receiver_that_may_hold_it
    write_needs_rights_on_every_key_of_both_branches
}
