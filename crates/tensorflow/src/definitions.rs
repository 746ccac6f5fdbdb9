//! The operations, as graphs name them.
//!
//! Names, inputs, outputs and attributes are those of Horovod, so that graphs saved with it load here. What this library adds
//! has a default: the attribute `tensor_name`, the element types that Horovod refuses, factors of reducescatter.
//!
//! All are stateful. TensorFlow runs a stateful operation as often as the program says; others it may run once while it
//! optimises a graph, merge with one that looks alike, or drop, each on one rank and not on another. Inside `tf.function`
//! TensorFlow also runs stateful operations one after the other, in the order of the program, unless it is told that they need
//! none; `ronde/tensorflow/naming.py` does that.

use std::ffi::{CStr, CString};

use ronde_bridge::Kind;

use crate::api::{Api, InferShapes};
use crate::shapes;
use crate::status::{Refusal, Status};

/// Where a collective finds its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Inputs are read, outputs are written.
    Tensors,
    /// Inputs are references to variables, which are changed and passed on.
    References,
    /// Inputs are handles of variables, which are changed.
    Resources,
}

/// What an operation tells of this process' place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Size,
    LocalSize,
    Rank,
    LocalRank,
    Included,
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Collective { kind: Kind, grouped: bool, access: Access },
    Number(Number),
}

/// An operation.
pub(crate) struct Definition {
    pub(crate) name: &'static CStr,
    attributes: &'static [&'static CStr],
    inputs: &'static [&'static CStr],
    outputs: &'static [&'static CStr],
    shapes: InferShapes,
    pub(crate) work: Work,
}

const TYPES: &CStr = c"T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}";
const REDUCE_OP: &CStr = c"reduce_op: int";
const PRESCALE: &CStr = c"prescale_factor: float";
const POSTSCALE: &CStr = c"postscale_factor: float";
const PRESCALE_OR_1: &CStr = c"prescale_factor: float = 1.0";
const POSTSCALE_OR_1: &CStr = c"postscale_factor: float = 1.0";
const ROOT: &CStr = c"root_rank: int";
const IGNORE_SCOPE: &CStr = c"ignore_name_scope: bool = false";
const SET: &CStr = c"process_set_id: int = 0";
const TENSORS: &CStr = c"num_tensors: int";
const VARIABLES: &CStr = c"num_variables: int";
const VARIABLE_NAMES: &CStr = c"variable_names: list(string)";
const NAME: &CStr = c"tensor_name: string = ''";

const fn collective(kind: Kind, grouped: bool) -> Work {
    Work::Collective { kind, grouped, access: Access::Tensors }
}

/// All of them.
pub(crate) static ALL: [Definition; 16] = [
    Definition {
        name: c"HorovodAllreduce",
        attributes: &[TYPES, REDUCE_OP, PRESCALE, POSTSCALE, IGNORE_SCOPE, SET, NAME],
        inputs: &[c"tensor: T"],
        outputs: &[c"sum: T"],
        shapes: shapes::same,
        work: collective(Kind::Allreduce, false),
    },
    Definition {
        name: c"HorovodGroupedAllreduce",
        attributes: &[TYPES, REDUCE_OP, PRESCALE, POSTSCALE, IGNORE_SCOPE, TENSORS, SET, NAME],
        inputs: &[c"tensors: num_tensors*T"],
        outputs: &[c"sum: num_tensors*T"],
        shapes: shapes::same,
        work: collective(Kind::Allreduce, true),
    },
    Definition {
        name: c"HorovodAllgather",
        attributes: &[TYPES, IGNORE_SCOPE, SET, NAME],
        inputs: &[c"tensor: T"],
        outputs: &[c"output: T"],
        shapes: shapes::other_rows,
        work: collective(Kind::Allgather, false),
    },
    Definition {
        name: c"HorovodGroupedAllgather",
        attributes: &[TYPES, IGNORE_SCOPE, TENSORS, SET, NAME],
        inputs: &[c"tensors: num_tensors*T"],
        outputs: &[c"outputs: num_tensors*T"],
        shapes: shapes::other_rows,
        work: collective(Kind::Allgather, true),
    },
    Definition {
        name: c"HorovodBroadcast",
        attributes: &[TYPES, ROOT, IGNORE_SCOPE, SET, NAME],
        inputs: &[c"tensor: T"],
        outputs: &[c"output: T"],
        shapes: shapes::same,
        work: collective(Kind::Broadcast, false),
    },
    Definition {
        name: c"HorovodBroadcastInplace",
        attributes: &[TYPES, ROOT, SET, VARIABLES, VARIABLE_NAMES, NAME],
        inputs: &[c"tensor_refs: Ref(num_variables*T)"],
        outputs: &[c"output_refs: Ref(num_variables*T)"],
        shapes: shapes::same,
        work: Work::Collective { kind: Kind::Broadcast, grouped: true, access: Access::References },
    },
    Definition {
        name: c"HorovodBroadcastInplaceResource",
        attributes: &[ROOT, SET, VARIABLES, VARIABLE_NAMES, NAME],
        inputs: &[c"resources: num_variables*resource"],
        outputs: &[],
        shapes: shapes::nothing,
        work: Work::Collective { kind: Kind::Broadcast, grouped: true, access: Access::Resources },
    },
    Definition {
        name: c"HorovodReducescatter",
        attributes: &[TYPES, REDUCE_OP, IGNORE_SCOPE, SET, PRESCALE_OR_1, POSTSCALE_OR_1, NAME],
        inputs: &[c"tensor: T"],
        outputs: &[c"output: T"],
        shapes: shapes::other_rows,
        work: collective(Kind::Reducescatter, false),
    },
    Definition {
        name: c"HorovodGroupedReducescatter",
        attributes: &[TYPES, REDUCE_OP, IGNORE_SCOPE, TENSORS, SET, PRESCALE_OR_1, POSTSCALE_OR_1, NAME],
        inputs: &[c"tensors: num_tensors*T"],
        outputs: &[c"outputs: num_tensors*T"],
        shapes: shapes::other_rows,
        work: collective(Kind::Reducescatter, true),
    },
    Definition {
        name: c"HorovodAlltoall",
        attributes: &[TYPES, IGNORE_SCOPE, SET, NAME],
        inputs: &[c"tensor: T", c"splits: int32"],
        outputs: &[c"output: T", c"received_splits: int32"],
        shapes: shapes::exchanged,
        work: collective(Kind::Alltoall, false),
    },
    Definition {
        name: c"HorovodJoin",
        attributes: &[],
        inputs: &[],
        outputs: &[c"output: int32"],
        shapes: shapes::number,
        work: collective(Kind::Join, false),
    },
    number(c"HorovodSize", &[SET], &[c"size: int32"], Number::Size),
    number(c"HorovodLocalSize", &[], &[c"local_size: int32"], Number::LocalSize),
    number(c"HorovodRank", &[], &[c"rank: int32"], Number::Rank),
    number(c"HorovodLocalRank", &[], &[c"local_rank: int32"], Number::LocalRank),
    number(c"HorovodProcessSetIncluded", &[SET], &[c"included: int32"], Number::Included),
];

const fn number(
    name: &'static CStr,
    attributes: &'static [&'static CStr],
    outputs: &'static [&'static CStr],
    which: Number,
) -> Definition {
    Definition { name, attributes, inputs: &[], outputs, shapes: shapes::number, work: Work::Number(which) }
}

impl Definition {
    /// The operation of that name.
    pub(crate) fn find(name: &str) -> Option<&'static Definition> {
        ALL.iter().find(|definition| definition.name.to_bytes() == name.as_bytes())
    }

    /// The name, for people.
    pub(crate) fn text(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// The name of its first input; empty if it has none.
    pub(crate) fn argument(&self) -> &'static str {
        let first = self.inputs.first().and_then(|input| input.to_str().ok());
        first.and_then(|input| input.split(':').next()).unwrap_or_default()
    }

    /// The names of all its inputs and outputs.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = CString> + use<> {
        let name =
            |spec: &&'static CStr| CString::new(spec.to_bytes().split(|&byte| byte == b':').next()?).ok();
        self.inputs.iter().chain(self.outputs).filter_map(name)
    }

    /// Whether its nodes may be placed on a kind of device. Variables are changed where they lie, which only the CPU can.
    pub(crate) fn runs_on(&self, device: &CStr) -> bool {
        let changes_variables =
            matches!(self.work, Work::Collective { access: Access::References | Access::Resources, .. });
        device == c"CPU" || !changes_variables
    }

    /// Whether it has an attribute.
    pub(crate) fn has(&self, attribute: &CStr) -> bool {
        let is_it = |spec: &&CStr| {
            spec.to_bytes().strip_prefix(attribute.to_bytes()).is_some_and(|rest| rest.starts_with(b":"))
        };
        self.attributes.iter().any(is_it)
    }

    /// Makes the operation known to TensorFlow.
    pub(crate) fn register(&self, api: &'static Api) -> Result<(), Refusal> {
        let functions = &api.functions;
        let status = Status::new(api);
        // SAFETY: all texts end with a zero and are copied; registering takes the builder over, whatever comes of it.
        unsafe {
            let builder = (functions.new_op)(self.name.as_ptr());
            for attribute in self.attributes {
                (functions.add_attribute)(builder, attribute.as_ptr());
            }
            for input in self.inputs {
                (functions.add_input)(builder, input.as_ptr());
            }
            for output in self.outputs {
                (functions.add_output)(builder, output.as_ptr());
            }
            (functions.set_stateful)(builder, true);
            (functions.set_shapes)(builder, self.shapes);
            (functions.register_op)(builder, status.as_ptr());
        }
        status.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_known_by_their_whole_name() {
        let allreduce = Definition::find("HorovodAllreduce").expect("an operation");
        assert!(allreduce.has(c"prescale_factor"));
        assert!(!allreduce.has(c"prescale"));
        assert!(!allreduce.has(c"root_rank"));
    }

    #[test]
    fn the_first_argument_is_known_by_its_name() {
        let argument = |name| Definition::find(name).expect("an operation").argument();
        assert_eq!(argument("HorovodAlltoall"), "tensor");
        assert_eq!(argument("HorovodGroupedAllreduce"), "tensors");
        assert_eq!(argument("HorovodJoin"), "");
    }

    #[test]
    fn only_what_changes_no_variables_runs_on_gpus_and_all_arguments_are_named() {
        let found = |name| Definition::find(name).expect("an operation");
        assert!(found("HorovodAlltoall").runs_on(c"GPU") && found("HorovodRank").runs_on(c"GPU"));
        assert!(!found("HorovodBroadcastInplace").runs_on(c"GPU"));
        assert!(found("HorovodBroadcastInplace").runs_on(c"CPU"));
        let arguments: Vec<CString> = found("HorovodAlltoall").arguments().collect();
        assert_eq!(arguments, [c"tensor", c"splits", c"output", c"received_splits"].map(CStr::to_owned));
    }

    #[test]
    fn only_these_operations_exist() {
        assert!(Definition::find("HorovodJoin").is_some());
        assert!(Definition::find("Horovod").is_none());
        assert!(Definition::find("HorovodJoined").is_none());
    }
}
