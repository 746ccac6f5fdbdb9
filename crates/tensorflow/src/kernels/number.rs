//! Operations that tell this process' place. They are asked when a graph runs, so a graph may outlive a job of another size.

use ronde_bridge::Engine;

use crate::context::{Construction, Context};
use crate::definitions::{Definition, Number};
use crate::status::{Code, Refusal};
use crate::{dtype, engine};

/// What the engine says of a set that it does not know.
const NO_SUCH_SET: i32 = -3;

pub(super) struct Answer {
    op: &'static str,
    number: Number,
    set: i64,
}

impl Answer {
    pub(super) fn new(
        definition: &'static Definition,
        number: Number,
        construction: &Construction,
    ) -> Result<Answer, Refusal> {
        let name = c"process_set_id";
        let set = if definition.has(name) { construction.int(name)? } else { 0 };
        Ok(Answer { op: definition.text(), number, set })
    }

    pub(super) fn compute(&self, context: Context) {
        let outcome = engine().and_then(|engine| self.answer(engine)).and_then(|answer| {
            let mut output = context.allocate(0, dtype::INT32, &[], size_of::<i32>())?;
            output.write_numbers(&[answer]);
            Ok(())
        });
        if let Err(refusal) = outcome {
            context.fail(&refusal.of(self.op));
        }
    }

    fn answer(&self, engine: Engine) -> Result<i32, Refusal> {
        let place = || engine.place().ok_or_else(not_initialized);
        Ok(match self.number {
            Number::Rank => place()?.rank,
            Number::LocalRank => place()?.local_rank,
            Number::LocalSize => place()?.local_size,
            Number::Included => u32::try_from(self.set).map_or(NO_SUCH_SET, |set| engine.set_included(set)),
            Number::Size => {
                place()?;
                match u32::try_from(self.set).map_or(NO_SUCH_SET, |set| engine.set_size(set)) {
                    size @ 0.. => size,
                    _ => {
                        let text = format!("there is no process set {}", self.set);
                        return Err(Refusal::new(Code::InvalidArgument, text));
                    }
                }
            }
        })
    }
}

fn not_initialized() -> Refusal {
    Refusal::new(Code::FailedPrecondition, "Horovod has not been initialized; use hvd.init().")
}
