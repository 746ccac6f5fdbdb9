//! A whole cluster in memory, and managers that are killed after every single action.
//!
//! Pods are the real objects. A scheduler binds what is not gated, kubelets start what is bound, chiefs train for a while
//! and end, deleted pods take their time (`world.rs`). Managers see the world as it was a while ago, except where they
//! list (`manager.rs`). Each of their actions is a step of its own, between which anybody else's steps may come; after any
//! of them a manager may be killed, which forgets what it did not write down. The API server may be busy or say no, and
//! somebody else's pods may have the names that a job would give to its own.
//!
//! What must hold whatever happens: the scheduler is never let at more GPUs of a node than it has; every job ends well;
//! nothing is left in the end but the chiefs that are kept for their logs.

mod manager;
mod world;

use k8s_openapi::jiff::SignedDuration;

use crate::job::{Phase, examples};
use manager::Manager;
use world::{Dice, Trouble, World};

/// When managers are killed.
#[derive(Clone, Copy, Debug)]
enum Kills {
    Never,
    /// After each step with this chance.
    OneIn(usize),
    /// Once, after this many actions of theirs.
    After(usize),
}

/// What somebody does to the jobs after so many actions of their managers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    Deletes(usize),
    /// Suspends them, and resumes them when their GPUs are free.
    Suspends(usize),
}

/// One story.
#[derive(Clone, Debug)]
struct Story {
    nodes: &'static [u32],
    jobs: &'static [u32],
    seed: u64,
    kills: Kills,
    /// Whether every job has two managers that do not know of each other.
    twins: bool,
    /// Whether managers write their status down.
    writes: bool,
    trouble: Trouble,
    /// Whether chiefs have a container that does not end by itself.
    sidecars: bool,
    change: Change,
    /// How many trainings fail, how many retries there are, and how long a training may take.
    failing: u32,
    retries: u32,
    deadline: Option<u32>,
    /// How it is to end.
    ends: Phase,
    /// Pods of somebody else's that are there from the beginning.
    strangers: &'static [&'static str],
}

impl Default for Story {
    fn default() -> Story {
        Story {
            nodes: &[5, 3, 2],
            jobs: &[6],
            seed: 1,
            kills: Kills::Never,
            twins: false,
            writes: false,
            trouble: Trouble::default(),
            sidecars: false,
            change: Change::Nothing,
            failing: 0,
            retries: 0,
            deadline: None,
            ends: Phase::Succeeded,
            strangers: &[],
        }
    }
}

impl Story {
    /// Runs the jobs until all have ended; returns how often managers acted.
    fn run(&self) -> usize {
        let mut acts = 0;
        let mut dice = Dice::new(self.seed);
        let mut world = World::new(self.nodes, self.seed);
        world.trouble = self.trouble;
        world.has_sidecars = self.sidecars;
        world.failing = self.failing;
        self.strangers.iter().for_each(|name| world.add_stranger(name));
        let mut managers: Vec<Manager> = Vec::new();
        for (index, gpus) in self.jobs.iter().enumerate() {
            let mut job = examples::job(&format!("job-{index}"), *gpus);
            job.spec.retries = self.retries;
            job.spec.deadline_seconds = self.deadline;
            (0..=usize::from(self.twins)).for_each(|_| managers.push(Manager::new(job.clone(), self.writes)));
        }
        for _ in 0..400_000 {
            match dice.below(10) {
                0..=4 => {
                    let chosen = dice.below(managers.len());
                    let acted = managers[chosen].step(&mut world);
                    acts += usize::from(acted);
                    let is_killed = match self.kills {
                        Kills::Never => false,
                        Kills::OneIn(chance) => dice.one_in(chance),
                        Kills::After(count) => acted && count == acts,
                    };
                    if is_killed {
                        managers[chosen].is_killed();
                    }
                }
                5..=6 => world.go_on(&mut dice),
                7..=8 => world.look(),
                _ => world.wait(SignedDuration::from_millis(150)),
            }
            self.interfere(acts, &world, &mut managers);
            if managers
                .iter()
                .all(|manager| manager.done || manager.job.deleting && world.ours().count() == 0)
            {
                break;
            }
        }
        for manager in managers.iter().filter(|manager| !manager.job.deleting) {
            let about = (&manager.job.name, &manager.status.phase, &manager.status.message);
            let pods: Vec<&String> = world.pods.keys().collect();
            assert_eq!(manager.status.phase, self.ends, "{about:?} {pods:?} {self:?}");
        }
        self.settle(&mut world, &mut managers, &mut dice);
        if self.failing > 0 {
            let attempts = self.retries.min(self.failing) + 1;
            assert_eq!(world.trainings, attempts, "{self:?}");
        }
        acts
    }

    /// Somebody changes the jobs.
    fn interfere(&self, acts: usize, world: &World, managers: &mut [Manager]) {
        for manager in managers {
            match self.change {
                Change::Deletes(step) => manager.job.deleting = acts >= step,
                Change::Suspends(step) => {
                    let is_suspended = manager.status.phase == Phase::Suspended;
                    let is_free = is_suspended && world.ours().all(|own| own.is_finished());
                    let is_before = !manager.job.spec.suspend && acts == step;
                    manager.job.spec.suspend = (manager.job.spec.suspend || is_before) && !is_free;
                }
                Change::Nothing => {}
            }
        }
    }

    /// Lets everything come to rest, and looks at what is left.
    fn settle(&self, world: &mut World, managers: &mut [Manager], dice: &mut Dice) {
        for _ in 0..80 {
            world.wait(SignedDuration::from_secs(2));
            world.look();
            (0..8).for_each(|_| world.go_on(dice));
            for manager in managers.iter_mut() {
                for _ in 0..3 {
                    manager.step(world);
                }
            }
        }
        for own in world.ours() {
            let is_kept = own.is_chief && own.is_finished() && !matches!(self.change, Change::Deletes(_));
            assert!(is_kept, "{} is left: {self:?}", own.name);
        }
        for name in self.strangers {
            assert!(world.pods.contains_key(*name), "{name} was not to be touched: {self:?}");
        }
    }
}

#[test]
fn one_job_runs_and_gives_everything_back() {
    Story::default().run();
}

#[test]
fn a_manager_may_be_killed_after_any_action() {
    for writes in [false, true] {
        let story = Story { writes, ..Story::default() };
        for step in 1..=story.run() {
            Story { kills: Kills::After(step), ..story.clone() }.run();
        }
    }
}

#[test]
fn a_manager_may_be_killed_again_and_again() {
    for seed in 0..40 {
        Story { seed, kills: Kills::OneIn(4), writes: seed % 2 == 0, ..Story::default() }.run();
    }
}

#[test]
fn jobs_that_want_the_same_gpus_take_turns() {
    for seed in 0..25 {
        Story { seed, jobs: &[6, 7, 4], ..Story::default() }.run();
    }
}

#[test]
fn they_do_so_even_if_their_managers_are_killed() {
    for seed in 100..120 {
        let (nodes, jobs) = (&[4, 4, 4], &[6, 7, 4, 12, 1]);
        Story { seed, nodes, jobs, kills: Kills::OneIn(12), writes: seed % 2 == 0, ..Story::default() }.run();
    }
}

#[test]
fn names_that_others_have_are_gone_around() {
    for seed in 0..10 {
        let strangers = &["job-0-chief", "job-0-worker-0-r1"];
        Story { seed, strangers, kills: Kills::OneIn(30), writes: true, ..Story::default() }.run();
    }
}

#[test]
fn deletions_that_fail_are_made_up_for() {
    for seed in 0..20 {
        let trouble = Trouble { busy: 3, quota: 4, ..Trouble::default() };
        let writes = seed % 2 == 0;
        Story { seed, jobs: &[6, 7], trouble, writes, kills: Kills::OneIn(20), ..Story::default() }.run();
    }
}

#[test]
fn not_to_be_allowed_to_delete_for_a_while_costs_no_job_its_success() {
    for seed in 0..20 {
        let trouble = Trouble { quota: 6, forbids: true, ..Trouble::default() };
        Story { seed, jobs: &[6, 7], trouble, writes: seed % 2 == 0, ..Story::default() }.run();
    }
}

#[test]
fn nodes_that_turn_pods_away_cost_no_job_its_success() {
    for seed in 0..20 {
        let (trouble, writes) = (Trouble { refuses: 3, ..Trouble::default() }, seed % 2 == 0);
        Story { seed, jobs: &[6, 4], trouble, writes, kills: Kills::OneIn(30), ..Story::default() }.run();
    }
}

#[test]
fn a_container_that_never_ends_keeps_no_gpu() {
    for seed in 0..10 {
        let writes = seed % 2 == 0;
        Story { seed, jobs: &[6, 7], sidecars: true, writes, kills: Kills::OneIn(12), ..Story::default() }
            .run();
    }
}

#[test]
fn two_managers_of_one_job_make_one_set_of_pods() {
    for seed in 0..20 {
        Story { seed, jobs: &[6, 7], twins: true, ..Story::default() }.run();
    }
}

#[test]
fn a_job_may_be_deleted_or_suspended_after_any_action() {
    for writes in [false, true] {
        let story = Story { writes, ..Story::default() };
        for step in 1..=story.run() {
            Story { change: Change::Deletes(step), ..story.clone() }.run();
            Story { change: Change::Suspends(step), ..story.clone() }.run();
        }
    }
}

#[test]
fn as_many_attempts_are_made_as_the_job_allows_whoever_is_killed() {
    for seed in 0..12 {
        let story =
            Story { seed, kills: Kills::OneIn(15), writes: seed % 2 == 0, failing: 2, ..Story::default() };
        Story { retries: 2, ..story.clone() }.run();
        Story { retries: 1, ends: Phase::Failed, sidecars: seed % 3 == 0, ..story }.run();
    }
}

#[test]
fn a_training_that_takes_too_long_ends_for_good_and_keeps_its_logs() {
    for seed in 0..12 {
        let (kills, writes) = (Kills::OneIn(15), seed % 2 == 0);
        let deadline = Some(10);
        Story { seed, kills, writes, deadline, retries: 3, ends: Phase::Failed, ..Story::default() }.run();
    }
}
