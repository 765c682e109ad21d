//! Each rule, taken out, is missed: the checker finds what then goes wrong. What it finds is printed with
//! `--nocapture`.

mod common;

use common::caught;
use tenure_model::agent::Host;
use tenure_model::fences::Storage;
use tenure_model::{Mutation, Stage, World};

/// One test for each mutation: where it is tried, and the rule that must be seen to break.
macro_rules! mutations {
    ($($name:ident: $mutation:ident on $place:ident breaks $rule:ident,)*) => {
        $(#[test] fn $name() { on_place!($place, $mutation, stringify!($rule)); })*

        #[test]
        fn every_mutation_is_tried() {
            let here = [Mutation::None, $(Mutation::$mutation),*];
            assert_eq!(Mutation::ALL, here);
        }
    };
}

macro_rules! on_place {
    (FENCES, $mutation:ident, $rule:expr) => {
        caught(stringify!($mutation), Storage { mutation: Mutation::$mutation }, $rule)
    };
    (AGENT, $mutation:ident, $rule:expr) => {
        caught(stringify!($mutation), Host { mutation: Mutation::$mutation }, $rule)
    };
    ($stage:ident, $mutation:ident, $rule:expr) => {
        caught(stringify!($mutation), World::mutated(Stage::$stage, Mutation::$mutation), $rule)
    };
}

mutations! {
    deadline_from_receipt: DeadlineFromReceipt on DRIFT breaks permits_never_overlap,
    no_sigma_and_rho: NoSigmaAndRho on DRIFT breaks permits_never_overlap,
    deadline_from_first_send: DeadlineFromFirstSend on TIME breaks healthy_holder_keeps,
    deadline_from_last_send: DeadlineFromLastSend on TIME breaks permits_never_overlap,
    acquire_moves_deadline: AcquireMovesDeadline on ACQUIRE breaks permits_never_overlap,
    push_moves_deadline: PushMovesDeadline on WAITED breaks permits_never_overlap,
    notice_after_deadline: NoticeAfterDeadline on NOTICE breaks permits_never_overlap,
    early_event_forgotten: EarlyEventForgotten on WAITED breaks permits_never_overlap,
    late_open_believed: LateOpenBelieved on REOPENED breaks permits_never_overlap,
    permit_after_release: PermitAfterRelease on NOTICE breaks permits_never_overlap,
    stamp_at_batch_open: StampAtBatchOpen on TIME breaks permits_never_overlap,
    stamp_from_last_tick: StampFromLastTick on TIME breaks permits_never_overlap,
    old_reading_kept: OldReadingKept on FAILOVER breaks permits_never_overlap,
    inbox_kept: InboxKept on FAILOVER_CUT breaks stamps_never_fall,
    cap_per_tick_only: CapPerTickOnly on HEALTHY breaks healthy_holder_keeps,
    count_runs_on: CountRunsOn on HEALTHY breaks healthy_holder_keeps,
    count_lowered: CountLowered on SHRINK breaks stamps_never_fall,
    no_probe: NoProbe on HEALTHY breaks healthy_holder_keeps,
    cut_without_holding: CutWithoutHolding on CUT breaks healthy_holder_keeps,
    open_passes_cut: OpenPassesCut on OPENING_CUT breaks permits_never_overlap,
    tagged_before_reading: TaggedBeforeReading on CUT breaks permits_never_overlap,
    newer_takes_olders_place: NewerTakesOldersPlace on CUT breaks permits_never_overlap,
    deposed_answers: DeposedAnswers on DEPOSED breaks permits_never_overlap,
    expiry_before_renewals: ExpiryBeforeRenewals on TIME breaks healthy_holder_keeps,
    answered_at_commit: AnsweredAtCommit on TIME breaks permits_never_overlap,
    repeated_open_sets_nothing: RepeatedOpenSetsNothing on OPENING breaks permits_never_overlap,
    revoke_without_notice: RevokeWithoutNotice on NOTICE breaks permits_never_overlap,
    token_issued_twice: TokenIssuedTwice on TIME breaks tokens_rise,
    granted_in_later_entry: GrantedInLaterEntry on TIME breaks waiters_move,
    granted_while_held: GrantedWhileHeld on ACQUIRE breaks one_holder,
    barrier_skipped: BarrierSkipped on FENCES breaks reads_are_settled,
    fence_per_row: FencePerRow on FENCES breaks fence_never_falls,
    fence_in_two_steps: FenceInTwoSteps on FENCES breaks fence_never_falls,
    agent_pushes_time: AgentPushesTime on AGENT breaks permits_never_overlap,
    agent_answers_old_time: AgentAnswersOldTime on AGENT breaks permits_never_overlap,
    agent_vouches: AgentVouches on AGENT breaks no_lingering_lease,
}
