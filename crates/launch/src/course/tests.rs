//! Jobs as scripts of events, and what is ordered and concluded.

use super::*;

const GRACE: Duration = Duration::from_secs(4);
const TERM: Order = Order::Signal(libc::SIGTERM);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn exited(rank: usize, status: i32) -> Event {
    Event::Ended { rank, ending: Ending::Exited(status) }
}

fn killed(rank: usize, signal: i32) -> Event {
    Event::Ended { rank, ending: Ending::Killed(signal) }
}

fn left(rank: usize, at: u64) -> Parting {
    Parting { rank, at: ms(at), orderly: true }
}

fn lost(rank: usize, at: u64) -> Parting {
    Parting { rank, at: ms(at), orderly: false }
}

fn failure(course: &Course) -> (usize, Option<Ending>, u8, usize) {
    match course.cause() {
        Some(Cause::Failure(f)) => (f.rank, f.ending, f.status, f.others),
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn ranks_that_end_well_end_the_job_well() {
    let mut course = Course::new(3, GRACE);
    for rank in [1, 0, 2] {
        assert!(!course.is_over());
        assert_eq!(course.handle(ms(10), exited(rank, 0), &[]), []);
    }
    assert!(course.is_over());
    assert_eq!(course.cause(), None);
}

#[test]
fn a_job_that_is_led_ends_well_when_its_leader_has() {
    let mut course = Course::new(3, GRACE).led(true);
    assert_eq!(course.handle(ms(10), exited(0, 0), &[]), [TERM]);
    assert_eq!(course.handle(ms(20), killed(1, libc::SIGTERM), &[]), []);
    let lost = Event::HostLost { host: 2, ranks: 2..3, why: "its node went down".to_owned() };
    assert_eq!(course.handle(ms(30), lost, &[]), []);
    assert!(course.is_over());
    assert_eq!(course.cause(), None);
}

#[test]
fn a_job_that_is_led_fails_as_any_other() {
    for (rank, status) in [(0, 7), (1, 255)] {
        let mut course = Course::new(2, GRACE).led(true);
        assert_eq!(course.handle(ms(10), exited(rank, status), &[]), [TERM]);
        assert_eq!(failure(&course).0, rank);
    }
    // One who only stands by ends nothing by ending well.
    let mut course = Course::new(2, GRACE).led(true);
    assert_eq!(course.handle(ms(10), exited(1, 0), &[]), []);
    assert!(!course.is_over());
}

#[test]
fn the_first_to_fail_is_named_and_the_others_are_terminated_then_killed() {
    let mut course = Course::new(4, GRACE);
    course.handle(ms(5), exited(0, 0), &[]);
    assert_eq!(course.handle(ms(10), exited(2, 3), &[]), [TERM]);
    assert_eq!(failure(&course), (2, Some(Ending::Exited(3)), 3, 2));
    assert_eq!(course.next_tick(), Some(ms(10) + GRACE));
    assert_eq!(course.handle(ms(20), killed(1, libc::SIGTERM), &[]), []);
    assert_eq!(course.running().collect::<Vec<_>>(), [3]);
    assert_eq!(course.handle(ms(10) + GRACE, Event::Tick, &[]), [Order::Kill]);
    assert_eq!(course.handle(ms(11) + GRACE, Event::Tick, &[]), [], "ordered once");
    assert_eq!(failure(&course).0, 2);
}

#[test]
fn a_rank_that_winds_down_slowly_is_still_the_first() {
    // Rank 3 raised and said goodbye; rank 1 failed on that and was out of the door before it.
    let mut course = Course::new(4, GRACE);
    let partings = [left(3, 100), lost(1, 140)];
    assert_eq!(course.handle(ms(150), exited(1, 1), &partings), []);
    assert_eq!(course.handle(ms(160), exited(0, 1), &partings), []);
    assert_eq!(course.handle(ms(230), exited(3, 7), &partings), [TERM]);
    assert_eq!(failure(&course), (3, Some(Ending::Exited(7)), 7, 3));
}

#[test]
fn nobody_waits_long_for_a_cause_that_does_not_show() {
    // Rank 3 had left in order and goes on with something else.
    let mut course = Course::new(4, GRACE);
    let partings = [left(3, 100)];
    assert_eq!(course.handle(ms(150), exited(1, 1), &partings), []);
    assert_eq!(course.next_tick(), Some(ms(150) + SETTLE));
    assert_eq!(course.handle(ms(150) + SETTLE, Event::Tick, &partings), [TERM]);
    assert_eq!(failure(&course).0, 1);
}

#[test]
fn a_goodbye_long_before_has_nothing_to_do_with_a_later_failure() {
    let mut course = Course::new(2, GRACE);
    let partings = [left(0, 100)];
    assert_eq!(course.handle(ms(60_000), exited(1, 1), &partings), [TERM]);
    course.handle(ms(60_001), exited(0, 2), &partings);
    assert_eq!(failure(&course).0, 1);
}

#[test]
fn a_lost_connection_comes_before_the_exits_it_caused_even_if_its_process_lives() {
    // Rank 2 is a shell whose Python died; the shell itself goes on.
    let mut course = Course::new(3, GRACE);
    let partings = [lost(2, 100)];
    assert_eq!(course.handle(ms(180), exited(0, 1), &partings), []);
    assert_eq!(course.handle(ms(180) + SETTLE, Event::Tick, &partings), [TERM]);
    assert_eq!(failure(&course), (2, None, 1, 2));
}

#[test]
fn a_rank_killed_outright_is_named_at_once() {
    let mut course = Course::new(3, GRACE);
    assert_eq!(course.handle(ms(100), killed(1, 9), &[lost(1, 99)]), [TERM]);
    assert_eq!(failure(&course), (1, Some(Ending::Killed(9)), 137, 2));
}

#[test]
fn a_killed_rank_is_the_first_even_if_we_heard_of_what_followed_before() {
    let mut course = Course::new(3, GRACE);
    // Rank 0 has said goodbye because of rank 1, whose end comes late, and exits after that.
    assert_eq!(course.handle(ms(120), killed(1, libc::SIGKILL), &[left(0, 110)]), []);
    assert_eq!(course.handle(ms(130), exited(0, 1), &[left(0, 110), lost(1, 125)]), [TERM]);
    assert_eq!(failure(&course), (1, Some(Ending::Killed(libc::SIGKILL)), 137, 2));
}

#[test]
fn a_rank_that_breaks_down_because_of_another_is_not_the_first() {
    let mut course = Course::new(2, GRACE);
    assert_eq!(course.handle(ms(120), killed(1, libc::SIGABRT), &[left(0, 110)]), []);
    assert_eq!(course.handle(ms(300), exited(0, 1), &[left(0, 110)]), [TERM]);
    assert_eq!(failure(&course).0, 0);
}

#[test]
fn an_interrupt_is_passed_on_with_a_deadline_and_a_second_one_kills() {
    let mut course = Course::new(2, GRACE);
    let interrupt = || Event::Signal(libc::SIGINT);
    assert_eq!(course.handle(ms(10), interrupt(), &[]), [Order::Signal(libc::SIGINT)]);
    assert_eq!(course.next_tick(), Some(ms(10) + GRACE));
    assert_eq!(course.handle(ms(500), interrupt(), &[]), [Order::Kill]);
    assert_eq!(course.cause(), Some(&Cause::Signal(libc::SIGINT)));
}

#[test]
fn what_ranks_exit_with_after_an_interrupt_is_not_their_fault() {
    let mut course = Course::new(2, GRACE);
    course.handle(ms(10), Event::Signal(libc::SIGINT), &[]);
    assert_eq!(course.handle(ms(20), exited(0, 130), &[]), []);
    assert_eq!(course.handle(ms(10) + GRACE, Event::Tick, &[]), [Order::Kill]);
    assert_eq!(course.cause(), Some(&Cause::Signal(libc::SIGINT)), "not rank 0's fault");
}

#[test]
fn a_lost_host_takes_its_ranks_along_and_is_named_unless_a_rank_had_failed_before() {
    let lost = || Event::HostLost { host: 1, ranks: 2..4, why: "silence".to_owned() };
    let mut course = Course::new(4, GRACE);
    course.handle(ms(5), exited(0, 0), &[]);
    assert_eq!(course.handle(ms(10), lost(), &[]), [TERM]);
    let cause = Cause::HostLost { host: 1, why: "silence".to_owned(), at: ms(10), others: 1 };
    assert_eq!(course.cause(), Some(&cause));
    assert_eq!(course.running().collect::<Vec<_>>(), [1]);
    assert_eq!(course.handle(ms(20), killed(1, libc::SIGTERM), &[]), []);
    assert!(course.is_over());

    let mut course = Course::new(4, GRACE);
    assert_eq!(course.handle(ms(10), exited(3, 7), &[]), [TERM]);
    assert_eq!(course.handle(ms(20), lost(), &[]), []);
    assert_eq!(failure(&course).0, 3);
}

#[test]
fn termination_and_hang_up_are_passed_on_with_a_deadline() {
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let mut course = Course::new(2, GRACE);
        assert_eq!(course.handle(ms(0), Event::Signal(signal), &[]), [Order::Signal(signal)]);
        assert_eq!(course.handle(ms(1), Event::Signal(signal), &[]), []);
        assert_eq!(course.handle(GRACE, Event::Tick, &[]), [Order::Kill]);
        assert_eq!(course.cause(), Some(&Cause::Signal(signal)));
    }
}

#[test]
fn output_that_nobody_reads_ends_the_job() {
    let mut course = Course::new(2, GRACE);
    assert_eq!(course.handle(ms(0), Event::OutputClosed, &[]), [TERM]);
    assert_eq!(course.handle(ms(1), exited(0, 1), &[]), []);
    assert_eq!(course.cause(), Some(&Cause::OutputClosed));
}
