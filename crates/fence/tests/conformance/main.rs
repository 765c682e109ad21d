//! One suite for every fence, on the real storage. `cases.rs` has the fears, one file per adapter says how
//! to do what the cases ask, and [`conform`] makes every case a test of its own for every adapter.

mod cases;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "files")]
mod files;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "stand-in")]
mod object;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

/// Every case as a test. `$subject` is an async function that makes the storage ready, or says that it is
/// not installed.
macro_rules! conform {
    ($subject:expr) => {
        $crate::conform!(@ $subject;
            stale_write_to_untouched_rows_is_refused
            equal_token_is_accepted
            a_write_without_a_barrier_raises_the_mark
            concurrent_writers_of_one_holder_all_land
            concurrent_cursor_writers_do_not_deadlock
            a_zombie_open_across_the_barrier_cannot_land_after_it
            a_barrier_under_fire_is_a_clean_cut
            racing_takeovers_keep_what_they_accept_and_nothing_else
            a_timed_out_barrier_can_be_repeated
            a_barrier_overtaken_by_a_newer_one_is_refused
            deletes_are_guarded_and_do_not_reset_the_fence
            a_restart_does_not_forget_the_mark
            two_resources_do_not_fence_each_other
            two_slots_do_not_fence_each_other
            tokens_near_the_end_stay_exact
            the_cursor_moves_with_the_work_and_only_with_it
            a_permit_without_time_writes_nothing
            a_writer_whose_time_runs_out_inside_does_not_land
            repair_lowers_a_poisoned_mark
            strange_names_stay_names
        );
    };
    (@ $subject:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(subject) = $subject(stringify!($case)).await {
                    $crate::cases::$case(subject).await;
                }
            }
        )*
    };
}
use conform;
