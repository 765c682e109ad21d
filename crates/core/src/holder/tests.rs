//! The holder, one danger at a time. The combined test with the proposer is `tests/permits_never_overlap.rs`.

use super::*;
use crate::answer::{Grant, RenewalEvents};
use crate::command::Mode;
use crate::names::{FenceName, ResourceName};
use crate::numbers::{Generation, Secret, SessionId, SessionNumber};
use crate::timing::{Bounds, TimingNumbers};
use alloc::boxed::Box;
use alloc::vec;

const TTL: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Moment {
    Moment::from_readings(Duration::from_millis(ms), Duration::from_millis(500 + ms))
}

fn token(number: u64) -> Token {
    Token::try_from(number).unwrap()
}

fn resource() -> ResourceName {
    "settlement/cron".parse().unwrap()
}

fn grant(number: u64, mode: Mode) -> Grant {
    Grant {
        resource: resource(),
        session: SessionId { number: SessionNumber::new(1), secret: Secret::new([7; 16]) },
        holder: "worker".parse().unwrap(),
        mode,
        slot: None,
        token: token(number),
        generation: Generation::new(1),
        remaining: TTL,
        ttl: TTL,
        waited: Duration::ZERO,
        fences: vec![],
    }
}

/// TTL 10 s, R 3 s, rho 0, sigma 200 ms: the deadline falls 9.8 s after the send.
fn timing() -> Timing {
    let numbers = TimingNumbers { rho_ppm: 0, renew_every: ms(3_000), ..TimingNumbers::for_ttl(TTL) };
    numbers.checked(&Bounds::default()).unwrap()
}

/// The middle of the jitter: the next renewal exactly R later.
const MIDDLE: u32 = u32::MAX / 2 + 1;

/// A session opened by a transmission sent at 0 and answered at 0.1 s, with lease 1.
fn holder_with(options: HolderOptions) -> Holder {
    let mut holder = Holder::new(timing(), options);
    let number = holder.transmit(at(0), MIDDLE);
    holder.opened(number, TTL, at(100));
    holder.granted(&grant(1, Mode::Exclusive), &[], at(150));
    holder
}

fn holder() -> Holder {
    holder_with(HolderOptions::default())
}

fn renewed(number: u64) -> RenewalAnswer {
    RenewalAnswer::Renewed { number, ttl: TTL, last_lease_revision: Revision::new(3), events: None }
}

fn renewed_with(number: u64, events: RenewalEvents) -> RenewalAnswer {
    RenewalAnswer::Renewed {
        number,
        ttl: TTL,
        last_lease_revision: Revision::new(4),
        events: Some(Box::new(events)),
    }
}

fn allowed(holder: &Holder, ms: u64) -> bool {
    holder.permit(token(1), at(ms), Duration::ZERO).is_ok()
}

fn refusal(holder: &Holder, ms: u64) -> NoPermit {
    holder.permit(token(1), at(ms), Duration::ZERO).unwrap_err()
}

#[test]
fn the_deadline_counts_from_the_send_and_not_from_the_answer() {
    let mut holder = Holder::new(timing(), HolderOptions::default());
    let number = holder.transmit(at(0), MIDDLE);
    holder.opened(number, TTL, at(2_000));
    holder.granted(&grant(1, Mode::Exclusive), &[], at(2_000));
    let permit = holder.permit(token(1), at(2_000), Duration::ZERO).unwrap();
    assert_eq!(permit.remaining(at(2_000)), ms(7_800));
    assert!(allowed(&holder, 9_799));
    assert_eq!(refusal(&holder, 9_800), NoPermit::Jeopardy(Jeopardy::PastDeadline));
}

#[test]
fn an_answer_moves_the_deadline_to_its_own_transmission() {
    let mut holder = holder();
    let first = holder.transmit(at(3_000), MIDDLE);
    let second = holder.transmit(at(3_750), MIDDLE);
    holder.renewed(&renewed(first), at(4_000));
    assert_eq!(holder.remaining(at(4_000)), ms(8_800), "counted from the first one, which was answered");
    holder.renewed(&renewed(second), at(4_100));
    assert_eq!(holder.remaining(at(4_100)), ms(9_450));
}

#[test]
fn a_late_answer_to_an_old_transmission_moves_nothing_back() {
    let mut holder = holder();
    let first = holder.transmit(at(3_000), MIDDLE);
    let second = holder.transmit(at(3_750), MIDDLE);
    holder.renewed(&renewed(second), at(4_000));
    holder.renewed(&renewed(first), at(4_100));
    holder.renewed(&renewed(999), at(4_200));
    assert_eq!(holder.remaining(at(4_200)), ms(9_350));
}

#[test]
fn a_late_answer_to_a_repeated_open_moves_nothing() {
    let mut holder = Holder::new(timing(), HolderOptions::default());
    let first = holder.transmit(at(0), MIDDLE);
    let second = holder.transmit(at(800), MIDDLE);
    holder.opened(first, TTL, at(900));
    holder.granted(&grant(1, Mode::Exclusive), &[], at(1_000));
    // The lease is given notice, the push is lost, and only then the second open is applied.
    holder.opened(second, TTL, at(5_000));
    assert_eq!(holder.remaining(at(5_000)), ms(4_800), "still counted from the first");
}

#[test]
fn a_grant_moves_nothing() {
    let mut holder = holder();
    holder.granted(&grant(2, Mode::Exclusive), &[], at(9_000));
    assert_eq!(
        holder.lease_remaining(token(2), at(9_000)),
        ms(800),
        "a waited grant lives on the session's time"
    );
    assert!(holder.permit(token(2), at(9_800), Duration::ZERO).is_err());
}

#[test]
fn the_longer_of_the_two_clocks_counts() {
    let holder = holder();
    let suspended = Moment::from_readings(Duration::from_secs(30), ms(600));
    assert_eq!(
        holder.permit(token(1), suspended, Duration::ZERO).unwrap_err(),
        NoPermit::Jeopardy(Jeopardy::PastDeadline)
    );
}

#[test]
fn clocks_that_disagree_beyond_rho_are_jeopardy() {
    let strict = holder_with(HolderOptions { strict: true, ..HolderOptions::default() });
    let slewed = Moment::from_readings(ms(2_000), ms(500 + 1_700));
    let jeopardy = Jeopardy::ClocksDisagree { by: ms(300) };
    assert_eq!(holder().state(token(1), slewed), Some(LeaseState::Jeopardy(jeopardy)));
    assert!(holder().permit(token(1), slewed, Duration::ZERO).is_ok(), "the longer one still covers");
    assert_eq!(strict.permit(token(1), slewed, Duration::ZERO).unwrap_err(), NoPermit::Jeopardy(jeopardy));
}

#[test]
fn an_operation_that_does_not_fit_is_not_begun() {
    let holder = holder();
    assert!(holder.permit(token(1), at(8_800), ms(1_000)).is_ok());
    assert_eq!(
        holder.permit(token(1), at(8_801), ms(1_000)).unwrap_err(),
        NoPermit::TooShort { remaining: ms(999), max_op: ms(1_000) }
    );
}

#[test]
fn a_sharer_reads_and_never_writes() {
    let mut holder = holder();
    holder.granted(&grant(2, Mode::Shared), &[], at(200));
    assert_eq!(holder.permit(token(2), at(300), Duration::ZERO).unwrap_err(), NoPermit::ReadOnly);
    assert!(holder.read_permit(token(2), at(300), Duration::ZERO).is_ok());
}

#[test]
fn an_unanswered_renewal_is_jeopardy_and_is_repeated_until_answered() {
    let mut holder = holder();
    assert!(!holder.send_due(at(2_999)));
    assert!(holder.send_due(at(3_000)));
    holder.transmit(at(3_000), MIDDLE);
    assert!(!holder.send_due(at(3_749)));
    assert_eq!(holder.state(token(1), at(3_749)), Some(LeaseState::Held));
    assert!(holder.send_due(at(3_750)), "R/4 later, elsewhere");
    assert_eq!(holder.state(token(1), at(3_750)), Some(LeaseState::Jeopardy(Jeopardy::NotRenewed)));
    assert!(allowed(&holder, 3_750), "work goes on until the deadline");
    let number = holder.transmit(at(3_750), MIDDLE);
    holder.renewed(&renewed(number), at(3_800));
    assert_eq!(holder.state(token(1), at(3_800)), Some(LeaseState::Held));
    assert!(!holder.send_due(at(6_749)));
    assert!(holder.send_due(at(6_750)));
}

#[test]
fn a_failure_is_repeated_at_once_and_then_at_growing_distances() {
    let mut holder = holder();
    let mut now = 3_000;
    let mut distances = vec![];
    for _ in 0..7 {
        let number = holder.transmit(at(now), MIDDLE);
        let failed = now;
        holder.failed(number, at(failed));
        while !holder.send_due(at(now)) {
            now += 1;
        }
        distances.push(now - failed);
    }
    assert_eq!(distances, [0, 94, 188, 375, 750, 750, 750]);
}

#[test]
fn strict_mode_gives_no_permit_from_the_first_failure_on() {
    let mut holder = holder_with(HolderOptions { strict: true, ..HolderOptions::default() });
    let number = holder.transmit(at(3_000), MIDDLE);
    assert!(allowed(&holder, 3_010));
    holder.failed(number, at(3_020));
    assert_eq!(refusal(&holder, 3_020), NoPermit::Jeopardy(Jeopardy::NotRenewed));
    let number = holder.transmit(at(3_020), MIDDLE);
    holder.renewed(&renewed(number), at(3_040));
    assert!(allowed(&holder, 3_040));
}

#[test]
fn past_the_deadline_the_lease_is_held_again_only_when_the_store_says_so() {
    let mut holder = holder();
    let number = holder.transmit(at(9_000), MIDDLE);
    assert_eq!(holder.state(token(1), at(20_000)), Some(LeaseState::Jeopardy(Jeopardy::PastDeadline)));
    // Sent at 9 s and answered at 12 s: by the store it is ours again, until 18.8 s.
    holder.renewed(&renewed(number), at(12_000));
    assert_eq!(holder.state(token(1), at(12_000)), Some(LeaseState::Held));
    assert_eq!(holder.remaining(at(12_000)), ms(6_800));
}

#[test]
fn notices_are_taken_in_before_the_deadline_moves() {
    let mut holder = holder();
    holder.granted(&grant(2, Mode::Exclusive), &[], at(200));
    let number = holder.transmit(at(3_000), MIDDLE);
    let events = RenewalEvents {
        noticed: vec![(resource(), token(1), EndReason::Revoked, ms(7_000))],
        ..RenewalEvents::default()
    };
    assert_eq!(holder.renewed(&renewed_with(number, events), at(3_100)), Taken::All);
    assert_eq!(holder.lease_remaining(token(1), at(3_100)), ms(6_700), "as it stood");
    assert_eq!(holder.lease_remaining(token(2), at(3_100)), ms(9_700));
    assert_eq!(holder.notice(token(1)), Some(EndReason::Revoked));
    assert_eq!(holder.seen(), Revision::new(4));
    // Hearing of it again, after the session's deadline moved, moves nothing.
    holder.noticed(token(1), EndReason::Revoked);
    assert_eq!(holder.lease_remaining(token(1), at(3_200)), ms(6_600));
    assert_eq!(holder.state(token(1), at(9_800)), Some(LeaseState::Jeopardy(Jeopardy::PastDeadline)));
    holder.ended(token(1), EndReason::Revoked, at(10_100));
    let stopped = LeaseEnd::Expired { why: Some(EndReason::Revoked) };
    assert_eq!(holder.state(token(1), at(10_100)), Some(LeaseState::Ended(stopped)));
}

#[test]
fn an_end_in_the_answer_is_taken_in_before_the_deadline_moves() {
    let mut holder = holder();
    let number = holder.transmit(at(3_000), MIDDLE);
    let events =
        RenewalEvents { ended: vec![(resource(), token(1), EndReason::Revoked)], ..RenewalEvents::default() };
    holder.renewed(&renewed_with(number, events), at(3_100));
    let suspect = Suspect { from: at(0), length: ms(3_100) };
    let lost = LeaseEnd::Lost { why: Some(EndReason::Revoked), suspect };
    assert_eq!(refusal(&holder, 3_100), NoPermit::Ended(lost));
}

#[test]
fn an_incomplete_list_holds_the_deadline_until_the_store_was_asked() {
    let mut holder = holder();
    holder.granted(&grant(2, Mode::Exclusive), &[], at(200));
    let number = holder.transmit(at(3_000), MIDDLE);
    let events = RenewalEvents { incomplete: true, ..RenewalEvents::default() };
    assert_eq!(holder.renewed(&renewed_with(number, events), at(3_100)), Taken::AskForLeases);
    assert_eq!(holder.remaining(at(3_100)), ms(6_700));
    holder.granted(&grant(3, Mode::Exclusive), &[], at(3_200));
    holder.listed(&[token(2)], at(3_110), at(3_300));
    assert_eq!(holder.remaining(at(3_300)), ms(9_500));
    assert!(matches!(holder.state(token(1), at(3_300)), Some(LeaseState::Ended(LeaseEnd::Lost { .. }))));
    assert_eq!(holder.state(token(2), at(3_300)), Some(LeaseState::Held));
    assert_eq!(holder.state(token(3), at(3_300)), Some(LeaseState::Held), "granted after asking");
}

#[test]
fn a_deadline_that_waited_for_the_list_moves_nothing_back() {
    let mut holder = holder();
    let first = holder.transmit(at(3_000), MIDDLE);
    let events = RenewalEvents { incomplete: true, ..RenewalEvents::default() };
    assert_eq!(holder.renewed(&renewed_with(first, events), at(3_100)), Taken::AskForLeases);
    // The list is slow; the next renewal is answered before it comes.
    let second = holder.transmit(at(6_000), MIDDLE);
    holder.renewed(&renewed(second), at(6_100));
    assert_eq!(holder.remaining(at(6_100)), ms(9_700));
    holder.listed(&[token(1)], at(3_110), at(6_200));
    assert_eq!(holder.remaining(at(6_200)), ms(9_600), "still counted from the second");
}

#[test]
fn an_unknown_session_is_expired_if_we_had_stopped_and_lost_if_not() {
    let mut stopped = holder();
    assert_eq!(stopped.renewed(&RenewalAnswer::UnknownSession, at(11_000)), Taken::SessionEnded);
    let expired = LeaseState::Ended(LeaseEnd::Expired { why: None });
    assert_eq!(stopped.state(token(1), at(11_000)), Some(expired));
    assert!(!stopped.send_due(at(11_000)));
    assert_eq!(stopped.next_wake(at(11_000)), None);

    let mut acting = holder();
    acting.renewed(&RenewalAnswer::UnknownSession, at(4_000));
    let suspect = Suspect { from: at(0), length: ms(4_000) };
    let lost = LeaseState::Ended(LeaseEnd::Lost { why: None, suspect });
    assert_eq!(acting.state(token(1), at(4_000)), Some(lost));
}

/// Only time ends a session without anybody's doing, and it ends it after the deadline unless a clock is wrong.
#[test]
fn a_session_that_runs_out_before_its_deadline_is_distinguished_from_one_that_was_ended() {
    let ended = |why, ms| {
        let mut holder = holder();
        holder.end_session(why, at(ms));
        holder.end_session(None, at(ms + 1));
        holder.ended_early()
    };
    for why in [None, Some(EndReason::Expired)] {
        assert_eq!(ended(why, 9_000), Some(ms(800)), "{why:?}");
        assert_eq!(ended(why, 9_800), None, "{why:?}");
    }
    for why in [EndReason::Released, EndReason::Died, EndReason::Revoked] {
        assert_eq!(ended(Some(why), 9_000), None, "{why:?}");
    }
}

#[test]
fn a_revocation_at_once_is_a_loss_even_if_received_after_the_deadline() {
    let mut holder = holder();
    holder.ended(token(1), EndReason::Died, at(60_000));
    let suspect = Suspect { from: at(0), length: ms(9_800) };
    let lost = LeaseEnd::Lost { why: Some(EndReason::Died), suspect };
    assert_eq!(holder.state(token(1), at(60_000)), Some(LeaseState::Ended(lost)));
}

#[test]
fn nothing_answered_after_the_end_brings_the_session_back() {
    let mut holder = holder();
    let number = holder.transmit(at(3_000), MIDDLE);
    holder.renewed(&RenewalAnswer::UnknownSession, at(11_000));
    holder.renewed(&renewed(number), at(11_100));
    holder.granted(&grant(2, Mode::Exclusive), &[], at(11_100));
    assert!(!allowed(&holder, 11_100));
    assert!(holder.permit(token(2), at(11_100), Duration::ZERO).is_err());
}

#[test]
fn from_the_sending_of_a_release_on_there_is_no_permit_unless_it_was_refused() {
    let mut holder = holder();
    let permit = holder.permit(token(1), at(1_000), Duration::ZERO).unwrap();
    assert_eq!(holder.give_back(token(1)), Err(1), "never under a running operation");
    assert_eq!(holder.give_back_all(), Err(1));
    drop(permit);
    assert_eq!(holder.give_back(token(1)), Ok(()));
    assert_eq!(refusal(&holder, 1_000), NoPermit::GivingBack);
    holder.give_back(token(1)).unwrap();
    holder.give_back_refused(token(1));
    assert_eq!(refusal(&holder, 1_000), NoPermit::GivingBack, "the first may still arrive");
    holder.give_back_refused(token(1));
    assert!(allowed(&holder, 1_000));
    holder.give_back(token(1)).unwrap();
    holder.gave_back(token(1), EndReason::Transferred);
    assert_eq!(refusal(&holder, 1_000), NoPermit::Ended(LeaseEnd::Transferred));
    holder.forget(token(1));
    assert_eq!(refusal(&holder, 1_000), NoPermit::Unknown);
}

/// A release was still pending 170 s after its store had gone.
#[test]
fn nobody_waits_for_the_answer_to_a_give_back_past_the_deadline() {
    let mut holder = holder();
    holder.give_back(token(1)).unwrap();
    let wait = |holder: &Holder, asked, now| holder.give_back_wait(token(1), at(asked), at(now));
    assert_eq!(wait(&holder, 1_000, 1_000), ms(8_800));
    assert_eq!(wait(&holder, 1_000, 9_800), Duration::ZERO, "the deadline has come");
    assert_eq!(wait(&holder, 9_790, 9_800), Duration::ZERO, "also right after it was asked for");
    // Asked for after the deadline: a store that is there has R/4 to say how the lease ended.
    assert_eq!(wait(&holder, 9_800, 9_800), ms(750));
    assert_eq!(wait(&holder, 9_800, 10_550), Duration::ZERO);
    // A renewal moves the deadline, and with it the wait: the store is there.
    let number = holder.transmit(at(3_000), MIDDLE);
    holder.renewed(&renewed(number), at(3_100));
    assert_eq!(wait(&holder, 1_000, 9_800), ms(3_000));
    // Not for a lease under notice.
    holder.noticed(token(1), EndReason::Revoked);
    let number = holder.transmit(at(6_000), MIDDLE);
    holder.renewed(&renewed(number), at(6_100));
    assert_eq!(wait(&holder, 1_000, 9_800), ms(3_000));
}

#[test]
fn from_the_sending_of_a_close_on_no_lease_gives_a_permit() {
    let mut holder = holder();
    holder.granted(&grant(2, Mode::Exclusive), &[], at(200));
    holder.give_back_all().unwrap();
    // Its answer may be lost, and both leases another's by now.
    assert_eq!(refusal(&holder, 1_000), NoPermit::GivingBack);
    assert_eq!(holder.permit(token(2), at(1_000), Duration::ZERO).unwrap_err(), NoPermit::GivingBack);
}

#[test]
fn a_drain_lets_running_work_end_and_nothing_new_begin() {
    let mut holder = holder();
    let permit = holder.permit(token(1), at(1_000), Duration::ZERO).unwrap();
    holder.drain(token(1));
    assert_eq!(refusal(&holder, 1_000), NoPermit::Draining);
    assert_eq!(holder.permits_out(token(1)), 1);
    drop(permit);
    assert_eq!(holder.permits_out(token(1)), 0);
    holder.resume(token(1));
    assert!(allowed(&holder, 1_000));
}

#[test]
fn an_armed_lease_gives_its_first_permit_when_all_fences_have_answered() {
    let mut holder = holder();
    let fences: [FenceName; 2] = ["postgres:orders".parse().unwrap(), "s3:manifest".parse().unwrap()];
    holder.granted(&grant(2, Mode::Exclusive), &fences, at(200));
    let permit =
        |holder: &Holder| holder.permit(token(2), at(300), Duration::ZERO).map(|permit| permit.token());
    assert_eq!(permit(&holder), Err(NoPermit::NotArmed { missing: 2 }));
    assert_eq!(holder.barrier(token(2), at(300)).unwrap().1, token(2), "a barrier needs no permit");
    holder.armed(token(2), &fences[0]);
    assert_eq!(permit(&holder), Err(NoPermit::NotArmed { missing: 1 }));
    holder.armed(token(2), &fences[1]);
    assert_eq!(permit(&holder), Ok(token(2)));
    holder.barrier_refused(token(2), token(9));
    assert_eq!(permit(&holder), Err(NoPermit::Ended(LeaseEnd::Fenced { seen: token(9) })));
    assert!(holder.barrier(token(2), at(300)).is_err());
}

/// The fear: a new release names one fence, the old one's is forgotten, and its zombies go on writing there.
#[test]
fn an_armed_lease_waits_for_the_whole_set_of_the_resource() {
    let mut holder = holder();
    let [ours, theirs]: [FenceName; 2] = ["postgres:orders".parse().unwrap(), "s3:manifest".parse().unwrap()];
    let set = vec![ours.clone(), theirs.clone()];
    let named = core::slice::from_ref(&ours);
    holder.granted(&Grant { fences: set.clone(), ..grant(2, Mode::Exclusive) }, named, at(200));
    let permit = |holder: &Holder, number| {
        holder.permit(token(number), at(300), Duration::ZERO).map(|permit| permit.token())
    };
    holder.armed(token(2), &ours);
    assert_eq!(permit(&holder, 2), Err(NoPermit::NotArmed { missing: 1 }));
    assert!(holder.unarmed(token(2)).eq([&theirs]));
    holder.armed(token(2), &theirs);
    assert_eq!(permit(&holder, 2), Ok(token(2)));
    // Whoever named no fence did not ask to be armed; and readers have nothing to install.
    holder.granted(&Grant { fences: set.clone(), ..grant(3, Mode::Exclusive) }, &[], at(200));
    assert_eq!(permit(&holder, 3), Ok(token(3)));
    holder.granted(&Grant { fences: set, ..grant(4, Mode::Shared) }, named, at(200));
    assert!(holder.read_permit(token(4), at(300), Duration::ZERO).is_ok());
}

#[test]
fn a_pause_is_not_slept_over() {
    let mut holder = holder();
    assert_eq!(holder.woke(at(200)), None);
    assert_eq!(holder.next_wake(at(200)), Some(at(950)), "at least every R/4");
    assert!(allowed(&holder, 1_700));
    // The worker runs before the renewer does, and sees that the renewer is late.
    assert_eq!(refusal(&holder, 2_700), NoPermit::Jeopardy(Jeopardy::Paused { length: ms(1_750) }));
    let before = holder.transmit(at(2_700), MIDDLE);
    assert_eq!(holder.woke(at(2_710)), Some(ms(1_760)));
    holder.renewed(&renewed(before), at(2_720));
    assert!(!allowed(&holder, 2_720), "that one was sent before the pause showed");
    assert!(holder.send_due(at(2_720)), "at once, and not when the next one is due");
    let after = holder.transmit(at(2_720), MIDDLE);
    holder.renewed(&renewed(after), at(2_800));
    assert!(allowed(&holder, 2_800));
}

#[test]
fn without_progress_there_is_no_renewal() {
    let mut holder =
        holder_with(HolderOptions { progress_within: Some(ms(2_000)), ..HolderOptions::default() });
    holder.woke(at(1_500));
    assert!(!holder.send_due(at(3_500)), "due, but the worker stands still");
    assert_eq!(holder.state(token(1), at(3_500)), Some(LeaseState::Jeopardy(Jeopardy::NoProgress)));
    assert!(
        holder.next_wake(at(3_500)).is_some_and(|wake| wake != at(3_500)),
        "and the renewer does not spin"
    );
    holder.woke(at(3_600));
    holder.progressed(at(3_600));
    assert!(holder.send_due(at(3_600)));
}

#[test]
fn the_application_may_give_up_only_once_it_has_stopped() {
    let mut holder = holder();
    assert!(!holder.give_up(at(9_000)));
    assert!(holder.give_up(at(9_800)));
    let expired = LeaseState::Ended(LeaseEnd::Expired { why: None });
    assert_eq!(holder.state(token(1), at(9_800)), Some(expired));
}

#[test]
fn the_renewer_wakes_for_the_deadline() {
    let mut holder = holder();
    holder.transmit(at(9_300), MIDDLE);
    assert_eq!(holder.next_wake(at(9_400)), Some(at(9_800)));
}

#[test]
fn a_repeated_grant_arms_nothing_twice_and_revives_nothing() {
    let mut holder = holder();
    holder.give_back(token(1)).unwrap();
    holder.gave_back(token(1), EndReason::Released);
    holder.granted(&grant(1, Mode::Exclusive), &[], at(500));
    assert_eq!(refusal(&holder, 500), NoPermit::Ended(LeaseEnd::Released));
    holder.forget(token(1));
    holder.granted(&grant(1, Mode::Exclusive), &[], at(600));
    assert_eq!(refusal(&holder, 600), NoPermit::Unknown, "a released lease comes back by no late answer");
    holder.granted(&grant(2, Mode::Exclusive), &[], at(600));
    assert!(holder.permit(token(2), at(600), Duration::ZERO).is_ok());
}

#[test]
fn an_event_that_overtakes_its_grant_is_not_lost() {
    // Found by the model (stage "waited"): lease 2 was granted after a wait and put under notice; the renewal's answer came
    // before the pushed grant, moved the deadline, and the notice was dropped because nobody knew of lease 2 yet.
    let mut holder = holder();
    let number = holder.transmit(at(5_000), MIDDLE);
    let noticed = vec![(resource(), token(2), EndReason::Revoked, ms(4_800))];
    let ended = vec![(resource(), token(3), EndReason::Revoked)];
    holder.renewed(&renewed_with(number, RenewalEvents { noticed, ended, incomplete: false }), at(5_100));
    holder.granted(&grant(2, Mode::Exclusive), &[], at(5_200));
    holder.granted(&grant(3, Mode::Exclusive), &[], at(5_200));
    assert_eq!(holder.lease_remaining(token(1), at(5_200)), ms(9_600));
    assert_eq!(
        holder.lease_remaining(token(2), at(5_200)),
        ms(4_600),
        "the deadline as it stood at the notice"
    );
    assert_eq!(holder.notice(token(2)), Some(EndReason::Revoked));
    assert!(holder.permit(token(2), at(9_799), Duration::ZERO).is_ok());
    assert!(holder.permit(token(2), at(9_800), Duration::ZERO).is_err());
    assert!(
        holder.permit(token(3), at(5_200), Duration::ZERO).is_err(),
        "it had ended before its grant was received"
    );
}
