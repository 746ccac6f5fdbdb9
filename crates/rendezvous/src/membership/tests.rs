//! Scenarios as tables: events at given milliseconds, and what the job is told.

use super::*;

const ZERO: Duration = Duration::ZERO;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn join(rank: usize, size: usize) -> Event {
    Event::Joined { rank, size, host: format!("h{}", rank % 3), card: vec![rank as u8] }
}

fn gives(rank: usize, tag: &str) -> Event {
    Event::Exchanged { rank, tag: tag.to_owned(), bytes: vec![rank as u8, 7] }
}

fn disconnected(rank: usize) -> Event {
    Event::ConnectionLost { rank, how: "its connection closed without a goodbye".to_owned() }
}

fn reported(rank: usize, reason: &str) -> Event {
    Event::Reported { rank, reason: reason.to_owned() }
}

/// A job of `size` whose table has been sent.
fn running(size: usize) -> Membership {
    let mut job = Membership::new(size);
    for rank in 0..size {
        job.handle(ZERO, join(rank, size));
    }
    assert_eq!(job.tables, 1);
    job
}

/// The losses among actions, as (rank, reason, how many were told).
fn losses(actions: &[Action]) -> Vec<(usize, &str, usize)> {
    let loss = |action: &'_ Action| match action {
        Action::Announce { .. } => true,
        other => panic!("unexpected {other:?}"),
    };
    actions
        .iter()
        .filter(|action| loss(action))
        .filter_map(|action| match action {
            Action::Announce { to, loss } => Some((loss.rank?, loss.reason.as_str(), to.len())),
            _ => None,
        })
        .collect()
}

#[test]
fn the_table_comes_with_the_last_rank_in_rank_order_whatever_order_they_joined_in() {
    let size = 500;
    let mut job = Membership::new(size);
    // 7 and 500 have no common factor, so this visits every rank once.
    for step in 0..size - 1 {
        assert_eq!(job.handle(ZERO, join(step * 7 % size, size)), [], "step {step}");
    }
    let last = (size - 1) * 7 % size;
    let missing = job.handle(ZERO, Event::AskedWhoIsMissing { rank: 0 });
    assert_eq!(missing, [Action::TellMissing { to: 0, ranks: vec![last] }]);
    let cards = (0..size).map(|rank| vec![rank as u8]).collect();
    assert_eq!(job.handle(ZERO, join(last, size)), [Action::SendTable { cards }]);
    assert!(job.joined().into_iter().all(|joined| joined));
}

#[test]
fn a_join_that_cannot_be_is_refused_and_disturbs_nobody() {
    for (event, because) in [
        (join(0, 3), "already joined, from h0"),
        (join(3, 3), "3 ranks, counted from 0"),
        (join(1, 4), "expects 4 ranks, but this job has 3"),
        (join(1, 2), "expects 2 ranks, but this job has 3"),
        (
            Event::Joined { rank: 1, size: 3, host: "h".into(), card: vec![0; 6 << 20] },
            "too long for a job of 3",
        ),
    ] {
        let mut job = Membership::new(3);
        job.handle(ZERO, join(0, 3));
        let actions = job.handle(ZERO, event.clone());
        match actions.as_slice() {
            [Action::Refuse { reason }] => assert!(reason.contains(because), "{reason}"),
            other => panic!("{event:?} gave {other:?}"),
        }
        job.handle(ZERO, join(1, 3));
        let table = job.handle(ZERO, join(2, 3));
        assert!(matches!(table.as_slice(), [Action::SendTable { .. }]), "{table:?}");
    }
}

#[test]
fn a_card_may_be_as_long_as_fits_in_the_table() {
    for (more, refused) in [(0, false), (1, true)] {
        let card = vec![0; MAX_PAYLOAD / 3 + more];
        let actions =
            Membership::new(3).handle(ZERO, Event::Joined { rank: 1, size: 3, host: "h".into(), card });
        assert_eq!(matches!(actions[..], [Action::Refuse { .. }]), refused, "{more} bytes too long");
    }
}

#[test]
fn who_has_joined_and_who_takes_part_is_known_at_any_time() {
    let mut job = Membership::new(2);
    job.handle(ZERO, join(1, 2));
    assert_eq!(job.joined(), [false, true]);
    assert!(!job.is_in_round(1), "it waits for the first table");
    job.handle(ZERO, join(0, 2));
    assert!(job.is_in_round(0) && job.is_in_round(1));
    job.handle(ZERO, Event::Left { rank: 0 });
    assert!(!job.is_in_round(0) && job.is_in_round(1));
    job.handle(ZERO, join(0, 2));
    assert!(!job.is_in_round(0), "it waits for the next table");
    assert_eq!(job.joined(), [true, true]);
}

#[test]
fn a_rank_that_is_back_is_not_gone_any_more() {
    let mut job = running(3);
    job.handle(ZERO, Event::Left { rank: 0 });
    job.handle(ZERO, Event::Left { rank: 1 });
    job.handle(ZERO, join(0, 3));
    let gone: Vec<usize> = job.partings().iter().map(|parting| parting.rank).collect();
    assert_eq!(gone, [1]);
}

#[test]
fn a_lost_connection_waits_for_the_supervisors_reason_but_not_for_long() {
    let mut job = running(300);
    assert_eq!(job.handle(ms(10), disconnected(7)), []);
    assert_eq!(job.next_tick(), Some(ms(210)));
    assert_eq!(job.handle(ms(209), Event::Tick), []);
    let actions = job.handle(ms(210), Event::Tick);
    assert_eq!(losses(&actions), [(7, "its connection closed without a goodbye", 299)]);
    assert_eq!(job.next_tick(), None);

    let mut job = running(300);
    job.handle(ms(10), disconnected(7));
    let actions = job.handle(ms(60), reported(7, "killed by signal 9 (SIGKILL)"));
    assert_eq!(losses(&actions), [(7, "killed by signal 9 (SIGKILL)", 299)]);
    assert_eq!(job.first_loss().and_then(|loss| loss.rank), Some(7));
}

#[test]
fn a_report_that_came_first_makes_the_announcement_immediate() {
    let mut job = running(4);
    assert_eq!(job.handle(ms(10), reported(2, "exit status 3")), []);
    let actions = job.handle(ms(11), disconnected(2));
    assert_eq!(losses(&actions), [(2, "exit status 3", 3)]);
}

#[test]
fn a_report_is_enough_where_the_connection_never_breaks() {
    // A forked helper of the dead rank may still hold its socket.
    let mut job = running(4);
    job.handle(ms(10), reported(2, "exit status 3"));
    assert_eq!(losses(&job.handle(ms(210), Event::Tick)), [(2, "exit status 3", 3)]);
    assert_eq!(job.handle(ms(900), disconnected(2)), [], "told once");
}

#[test]
fn consequences_are_announced_after_their_cause() {
    let mut job = running(5);
    job.handle(ms(0), disconnected(3));
    // Rank 1 dies of rank 3's death, and everything is known about it first.
    assert_eq!(job.handle(ms(20), disconnected(1)), []);
    assert_eq!(job.handle(ms(21), reported(1, "exit status 1")), []);
    let actions = job.handle(ms(50), reported(3, "killed by signal 11 (SIGSEGV)"));
    assert_eq!(losses(&actions), [(3, "killed by signal 11 (SIGSEGV)", 3), (1, "exit status 1", 3)]);
    assert_eq!(job.first_loss().and_then(|loss| loss.rank), Some(3));
    let order: Vec<usize> = job.partings().iter().map(|parting| parting.rank).collect();
    assert_eq!(order, [3, 1]);
}

#[test]
fn a_death_before_the_table_is_told_to_those_who_wait_and_those_who_come_later() {
    let mut job = Membership::new(4);
    job.handle(ms(0), join(0, 4));
    job.handle(ms(0), join(1, 4));
    job.handle(ms(5), reported(1, "exit status 2"));
    let actions = job.handle(ms(5), disconnected(1));
    assert_eq!(losses(&actions), [(1, "exit status 2", 1)]);
    let late = job.handle(ms(9), join(2, 4));
    assert_eq!(losses(&late), [(1, "exit status 2", 1)]);
}

#[test]
fn a_rank_that_ends_without_ever_joining_fails_those_who_wait_for_it() {
    let mut job = Membership::new(3);
    job.handle(ms(0), join(0, 3));
    let actions = job.handle(ms(5), reported(2, "exited with status 0"));
    assert_eq!(losses(&actions), [(2, "exited with status 0 before it called init()", 1)]);
}

#[test]
fn an_orderly_goodbye_alarms_nobody_even_if_the_exit_is_reported_first() {
    let mut job = running(3);
    assert_eq!(job.handle(ms(0), Event::Left { rank: 1 }), []);
    assert_eq!(job.handle(ms(1), reported(1, "exited with status 0")), []);
    // The other way round: the supervisor saw the exit before the goodbye was read.
    assert_eq!(job.handle(ms(2), reported(2, "exited with status 0")), []);
    assert_eq!(job.handle(ms(3), Event::Left { rank: 2 }), []);
    assert_eq!(job.handle(ms(999), Event::Tick), []);
    assert!(!job.is_over());
    job.handle(ms(1000), Event::Left { rank: 0 });
    assert!(job.is_over());
    assert_eq!(job.first_loss(), None);
}

#[test]
fn leaving_while_the_job_starts_fails_those_who_wait() {
    let mut job = Membership::new(3);
    job.handle(ms(0), join(0, 3));
    job.handle(ms(0), join(1, 3));
    job.handle(ms(1), Event::Left { rank: 1 });
    let actions = job.handle(ms(201), Event::Tick);
    assert_eq!(losses(&actions), [(1, "it left while the job was starting", 1)]);
}

#[test]
fn exchanges_complete_in_rank_order_and_tags_do_not_mix() {
    let size = 200;
    let mut job = running(size);
    for rank in (1..size).rev() {
        assert_eq!(job.handle(ZERO, gives(rank, "a")), []);
        assert_eq!(job.handle(ZERO, gives(rank, "b")), []);
    }
    for tag in ["b", "a"] {
        let parts = (0..size).map(|rank| vec![rank as u8, 7]).collect();
        let expected = Action::CompleteExchange { tag: tag.to_owned(), parts };
        assert_eq!(job.handle(ZERO, gives(0, tag)), [expected]);
    }
    assert_eq!(job.handle(ZERO, gives(0, "a")), [], "a tag can be used again");
}

#[test]
fn an_exchange_that_needs_a_rank_which_left_fails_for_everybody_and_names_it() {
    let mut job = running(4);
    job.handle(ZERO, gives(0, "a"));
    job.handle(ZERO, gives(3, "a"));
    let actions = job.handle(ZERO, Event::Left { rank: 2 });
    match actions.as_slice() {
        [Action::FailExchange { to, tag, reason }] => {
            assert_eq!((to.as_slice(), tag.as_str()), (&[0, 3][..], "a"));
            assert!(reason.contains("rank 2 on h2"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // One that begins after the goodbye.
    let actions = job.handle(ZERO, gives(1, "a"));
    match actions.as_slice() {
        [Action::FailExchange { to, reason, .. }] => {
            assert_eq!(to, &[1]);
            assert!(reason.contains("rank 2"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exchange_completes_without_a_rank_that_gave_and_then_left() {
    let mut job = running(3);
    job.handle(ZERO, gives(2, "a"));
    assert_eq!(job.handle(ZERO, Event::Left { rank: 2 }), []);
    job.handle(ZERO, gives(0, "a"));
    let actions = job.handle(ZERO, gives(1, "a"));
    assert!(matches!(actions.as_slice(), [Action::CompleteExchange { .. }]), "{actions:?}");
}

#[test]
fn giving_twice_and_giving_too_much_fail_the_exchange() {
    let mut job = running(3);
    job.handle(ZERO, gives(1, "a"));
    let twice = job.handle(ZERO, gives(1, "a"));
    assert!(matches!(&twice[..], [Action::FailExchange { to, .. }] if to == &[1]), "{twice:?}");

    let much = |rank| Event::Exchanged { rank, tag: "m".into(), bytes: vec![0; 8 << 20] };
    job.handle(ZERO, much(0));
    let failed = job.handle(ZERO, much(1));
    assert!(matches!(&failed[..], [Action::FailExchange { to, .. }] if to == &[0, 1]), "{failed:?}");
}

#[test]
fn after_everybody_left_the_same_ranks_can_start_again() {
    let size = 3;
    let mut job = running(size);
    job.handle(ZERO, Event::Left { rank: 0 });
    // Rank 0 is back while the others are still in the first round.
    assert_eq!(job.handle(ZERO, join(0, size)), []);
    let failed = job.handle(ZERO, gives(1, "old"));
    assert!(matches!(&failed[..], [Action::FailExchange { .. }]), "{failed:?}");
    for rank in [1, 2] {
        job.handle(ZERO, Event::Left { rank });
    }
    assert_eq!(job.handle(ZERO, join(2, size)), []);
    let table = job.handle(ZERO, join(1, size));
    assert!(matches!(&table[..], [Action::SendTable { cards }] if cards.len() == 3), "{table:?}");
}

#[test]
fn starting_again_without_a_rank_whose_process_ended_is_an_error_at_once() {
    let mut job = running(2);
    job.handle(ZERO, Event::Left { rank: 0 });
    job.handle(ZERO, Event::Left { rank: 1 });
    job.handle(ZERO, reported(1, "exited with status 0"));
    let actions = job.handle(ZERO, join(0, 2));
    assert_eq!(losses(&actions), [(1, "exited with status 0", 1)]);

    let mut job = running(2);
    job.handle(ZERO, Event::Left { rank: 0 });
    job.handle(ZERO, Event::Left { rank: 1 });
    job.handle(ZERO, join(0, 2));
    let actions = job.handle(ZERO, reported(1, "exited with status 0"));
    assert_eq!(losses(&actions), [(1, "exited with status 0", 1)]);
}

#[test]
fn a_lost_rank_does_not_come_back() {
    let mut job = running(2);
    job.handle(ms(0), disconnected(1));
    for at in [1, 500] {
        let actions = job.handle(ms(at), join(1, 2));
        assert!(actions.iter().any(|a| matches!(a, Action::Refuse { .. })), "{at}: {actions:?}");
    }
}

#[test]
fn losing_everybody_at_once_announces_each_once_in_order() {
    let size = 256;
    let mut job = running(size);
    for rank in 0..size {
        job.handle(ms(rank as u64 / 10), disconnected(rank));
    }
    let actions = job.handle(ms(10_000), Event::Tick);
    let order: Vec<usize> = losses(&actions).into_iter().map(|(rank, ..)| rank).collect();
    assert_eq!(order, (0..size).collect::<Vec<_>>());
    assert_eq!(job.handle(ms(20_000), Event::Tick), []);
}

#[test]
fn a_rank_that_says_why_it_fails_is_announced_at_once_and_may_leave_afterwards() {
    let mut job = running(3);
    let failing = Event::Failing { rank: 1, reason: "it raised ValueError: no".to_owned() };
    assert_eq!(losses(&job.handle(ms(5), failing)), [(1, "it raised ValueError: no", 2)]);
    assert_eq!(job.handle(ms(6), Event::Left { rank: 1 }), []);
    assert_eq!(job.handle(ms(7), reported(1, "exited with status 1")), []);
    assert_eq!(job.first_loss().and_then(|loss| loss.rank), Some(1));
    let parted: Vec<(usize, bool)> =
        job.partings().iter().map(|parting| (parting.rank, parting.orderly)).collect();
    assert_eq!(parted, [(1, false)]);
}

#[test]
fn a_rank_that_fails_because_of_another_is_announced_after_it() {
    let mut job = running(3);
    assert_eq!(job.handle(ms(0), disconnected(2)), []);
    let failing = Event::Failing { rank: 1, reason: "it raised because rank 2 is gone".to_owned() };
    assert_eq!(job.handle(ms(1), failing), []);
    let told = job.handle(ms(2), reported(2, "killed by signal 9"));
    let who: Vec<usize> = losses(&told).iter().map(|loss| loss.0).collect();
    assert_eq!(who, [2, 1]);
}
