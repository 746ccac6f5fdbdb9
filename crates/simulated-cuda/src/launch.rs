//! Launches: a kernel's parameters are read when it is launched, its table when its turn in the stream has come.

use std::ffi::c_uint;

use ronde_collective::kernel::{Fold, FoldPlan};
use ronde_collective::types::DType;

use crate::handles::Handle;
use crate::kernel::Kernel;
use crate::module;
use crate::pieces::Task;
use crate::pointer::In;
use crate::status::{INVALID_VALUE, Result, demand};
use crate::stream;

/// Threads of a block, which our kernels count on.
const THREADS: c_uint = 256;

/// `cuLaunchKernel`
#[allow(clippy::too_many_arguments)] // CUDA's
pub(crate) fn launch(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    parameters: In<In<u64>>,
    extra: In<Handle>,
) -> Result {
    let stream = stream::resolve(stream)?;
    let function = module::get(function)?;
    stream::same_device(&stream, function.device)?;
    demand(grid_x > 0 && (grid_y, grid_z) == (1, 1) && (block_x, block_y, block_z) == (THREADS, 1, 1))?;
    demand(shared == 0 && extra.is_null())?;
    let words = (0..function.kernel.parameters()).map(|at| parameters.get(at)?.get(0));
    let words = words.collect::<Result<Vec<u64>>>()?;
    let (table, rest) = words.split_first().ok_or(INVALID_VALUE)?;
    let (table, task) = (*table, task(function.kernel, rest)?);
    let device = stream.device;
    stream.effect(move || task.run(device, table, grid_x as usize));
    Ok(())
}

/// A kernel with the parameters behind its table's address.
fn task(kernel: Kernel, words: &[u64]) -> Result<Task> {
    Ok(match (kernel, words) {
        (Kernel::Fill, &[pattern]) => Task::Fill { pattern },
        (Kernel::Convert { from, to }, &[factor]) => {
            Task::Convert { from, to, factor: f64::from_bits(factor) }
        }
        (Kernel::Fold { dtype, to, fold, scaled: false, .. }, bases) => {
            Task::Fold { plan: plan(dtype, fold, 1.0, 1.0, None)?, to, bases: bases.to_vec() }
        }
        (Kernel::Fold { dtype, to, fold, scaled: true, .. }, [bases @ .., prescale, postscale, divide]) => {
            // A divisor of 1 changes nothing but that sums of integers saturate, as they do in a scaled kernel.
            let sum = fold == Fold::Sum && dtype != DType::Bool;
            let divide = Some(*divide).filter(|divide| *divide != 1 || sum);
            let plan = plan(dtype, fold, f64::from_bits(*prescale), f64::from_bits(*postscale), divide)?;
            Task::Fold { plan, to, bases: bases.to_vec() }
        }
        (Kernel::Move, _) => Task::Move,
        _ => return Err(INVALID_VALUE),
    })
}

fn plan(dtype: DType, fold: Fold, prescale: f64, postscale: f64, divide: Option<u64>) -> Result<FoldPlan> {
    FoldPlan::new(dtype, fold, prescale, postscale, divide).map_err(|_| INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use crate::pieces::Piece;
    use crate::pointer::Out;
    use crate::status::{ILLEGAL_ADDRESS, INVALID_HANDLE, LAUNCH_FAILED, MISALIGNED_ADDRESS, NOT_READY};
    use crate::testing::{Desk, loaded, with_text};
    use half::{bf16, f16};
    use ronde_collective::kernel::{self, Stage};

    /// Memory of the heap that is registered, so that all devices reach it.
    struct Known<T: Copy>(Box<[T]>);

    impl<T: Copy> Known<T> {
        fn new(content: &[T]) -> Known<T> {
            let known = Known(Box::from(content));
            assert_eq!(memory::register(known.at(0), size_of_val(content), 0), Ok(()));
            known
        }

        fn at(&self, index: usize) -> u64 {
            self.0.as_ptr().wrapping_add(index) as u64
        }
    }

    impl<T: Copy> Drop for Known<T> {
        fn drop(&mut self) {
            assert_eq!(memory::unregister(self.at(0)), Ok(()));
        }
    }

    /// A kernel that is loaded on the current device.
    struct Loaded {
        module: Handle,
        function: Handle,
    }

    impl Loaded {
        fn new(entry: &str) -> Loaded {
            let (module, mut function) = (loaded(entry), 0);
            let found = with_text(entry, |name| module::function(Out::to(&mut function), module, name));
            assert_eq!(found, Ok(()));
            Loaded { module, function }
        }

        /// Launches it in the default stream.
        fn start(&self, pieces: usize, words: &[u64]) -> Result {
            let places: Vec<In<u64>> = words.iter().map(|word| In::from(&raw const *word)).collect();
            let (pieces, places) = (pieces as c_uint, In::from(places.as_ptr()));
            launch(self.function, pieces, 1, 1, THREADS, 1, 1, 0, 0, places, In::from(std::ptr::null()))
        }

        /// Launches it on a table and waits for its end.
        fn run(&self, pieces: &[Piece], words: &[u64]) -> Result {
            let table = Known::new(pieces);
            self.start(pieces.len(), &[&[table.at(0)], words].concat())?;
            stream::synchronize(0)
        }
    }

    impl Drop for Loaded {
        fn drop(&mut self) {
            assert_eq!(module::unload(self.module), Ok(()));
        }
    }

    fn piece(a: u64, b: u64, n: usize) -> Piece {
        Piece { a, b, n: n as u64 }
    }

    #[test]
    fn bytes_are_moved_and_filled_at_any_alignment() {
        let _desk = Desk::new();
        let bytes = Known::new(&[1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0]);
        let moving =
            [piece(bytes.at(0), bytes.at(9), 3), piece(bytes.at(4), bytes.at(12), 2), piece(0, 0, 0)];
        assert_eq!(Loaded::new("ronde_move").run(&moving, &[]), Ok(()));
        assert_eq!(bytes.0[..], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 5, 6]);
        let pattern = u64::from_ne_bytes([10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(Loaded::new("ronde_fill").run(&[piece(0, bytes.at(2), 10)], &[pattern]), Ok(()));
        assert_eq!(bytes.0[..], [1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 10, 11, 5, 6]);
    }

    #[test]
    fn a_fold_gives_the_bits_of_the_cpu() {
        let _desk = Desk::new();
        let numbers: Vec<bf16> = (0..300).map(|number| bf16::from_f32(number as f32 * 0.37 - 50.0)).collect();
        let sources = Known::new(&numbers);
        let result = Known::new(&[bf16::ZERO; 100]);
        let bases = [0, 100, 200].map(|at| sources.at(at));
        let halves = [piece(0, result.at(0), 50), piece(100, result.at(50), 50)];
        let words = [&bases[..], &[0.7_f64.to_bits(), 1.3_f64.to_bits(), 3]].concat();
        assert_eq!(Loaded::new("ronde_fold_bfloat16_sum_3_scaled").run(&halves, &words), Ok(()));

        let plan = FoldPlan::new(DType::BF16, Fold::Sum, 0.7, 1.3, Some(3)).expect("a plan");
        let mut expected = [bf16::ZERO; 100];
        let places = [0, 100, 200].map(|at| sources.at(at) as *const u8);
        // SAFETY: all places have a hundred elements.
        unsafe { kernel::fold(&plan, Stage::COMPLETE, expected.as_mut_ptr().cast(), None, &places, 100) };
        assert_eq!(result.0[..], expected);
    }

    #[test]
    fn folds_may_be_in_place_and_scaled_integers_saturate() {
        let _desk = Desk::new();
        let numbers = Known::new(&[100_i8, -100, 100, -100]);
        let words = [numbers.at(0), numbers.at(2)];
        assert_eq!(Loaded::new("ronde_fold_int8_max_2").run(&[piece(1, numbers.at(1), 1)], &words), Ok(()));
        let neutral = [1.0_f64.to_bits(), 1.0_f64.to_bits(), 1];
        let scaled = [&words[..], &neutral].concat();
        let whole = [piece(0, numbers.at(0), 2)];
        assert_eq!(Loaded::new("ronde_fold_int8_sum_2_scaled").run(&whole, &scaled), Ok(()));
        assert_eq!(numbers.0[..], [127, -128, 100, -100]);
        assert_eq!(Loaded::new("ronde_fold_int8_sum_2").run(&whole, &words), Ok(()));
        assert_eq!(numbers.0[0], (127_i8).wrapping_add(100));
        let twice = [&words[..], &[2.0_f64.to_bits(), 1.0_f64.to_bits(), 1]].concat();
        assert_eq!(Loaded::new("ronde_fold_bool_sum_2_scaled").run(&whole, &twice), Err(INVALID_VALUE));
    }

    #[test]
    fn floats_are_converted_times_a_factor() {
        let _desk = Desk::new();
        let from = Known::new(&[1.5_f32, -2.0, f32::NEG_INFINITY, f32::from_bits(0xffff_ffff)]);
        let to = Known::new(&[0_u16; 4]);
        let whole = [piece(from.at(0), to.at(0), 4)];
        assert_eq!(Loaded::new("ronde_convert_float32_bfloat16").run(&whole, &[0.5_f64.to_bits()]), Ok(()));
        assert_eq!(to.0[..], [0x3f40, 0xbf80, 0xff80, 0x7fc0]);
        let back = [piece(to.at(0), from.at(0), 4)];
        assert_eq!(Loaded::new("ronde_convert_bfloat16_float32").run(&back, &[2.0_f64.to_bits()]), Ok(()));
        assert_eq!(from.0[..3], [1.5, -2.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn what_is_narrowed_is_rounded_before_it_is_scaled() {
        let _desk = Desk::new();
        // Between 2048 and 2050, which are neighbours as halves; three times the number itself would be 6147.
        let (from, to) = (Known::new(&[2049.0_f32]), Known::new(&[f16::ZERO]));
        let whole = [piece(from.at(0), to.at(0), 1)];
        assert_eq!(Loaded::new("ronde_convert_float32_float16").run(&whole, &[3.0_f64.to_bits()]), Ok(()));
        assert_eq!(to.0[0].to_f32(), 6144.0);
    }

    #[test]
    fn a_fold_rounds_its_result_before_it_stores_it_wider() {
        let _desk = Desk::new();
        let (sources, result) = (Known::new(&[2048.0, 1.0].map(f16::from_f32)), Known::new(&[0.0_f32]));
        let words = [sources.at(0), sources.at(1)];
        let wider = Loaded::new("ronde_fold_float16_sum_2_to_float32");
        assert_eq!(wider.run(&[piece(0, result.at(0), 1)], &words), Ok(()));
        assert_eq!(result.0[0], 2048.0);
    }

    #[test]
    fn the_table_is_read_in_the_stream_and_not_before() {
        let desk = Desk::new();
        let (bytes, mut table) = (Known::new(&[1_u8, 0]), Known::new(&[piece(0, 0, 0)]));
        let kernel = Loaded::new("ronde_move");
        desk.simulation.pause();
        assert_eq!(kernel.start(1, &[table.at(0)]), Ok(()));
        table.0[0] = piece(bytes.at(0), bytes.at(1), 1);
        assert_eq!(stream::query(0), Err(NOT_READY));
        desk.simulation.resume();
        assert_eq!(stream::synchronize(0), Ok(()));
        assert_eq!(bytes.0[..], [1, 1]);
    }

    #[test]
    fn launches_that_can_not_be_right_are_refused() {
        let desk = Desk::new();
        let kernel = Loaded::new("ronde_move");
        assert_eq!(kernel.start(0, &[0]), Err(INVALID_VALUE));
        desk.on(1, || assert_eq!(kernel.start(1, &[0]), Err(INVALID_HANDLE), "loaded on another device"));
        let function = kernel.function;
        drop(kernel);
        let gone = std::mem::ManuallyDrop::new(Loaded { module: 0, function });
        assert_eq!(gone.start(1, &[0]), Err(INVALID_HANDLE));
    }

    #[test]
    fn memory_of_nobody_is_an_illegal_address() {
        let desk = Desk::new();
        let (stranger, known) = ([0_u8; 8], Known::new(&[0_u8; 8]));
        let pieces = [piece(stranger.as_ptr() as u64, known.at(0), 8)];
        assert_eq!(Loaded::new("ronde_move").run(&pieces, &[]), Err(ILLEGAL_ADDRESS));
        assert_eq!(desk.simulation.fault(0), Some(ILLEGAL_ADDRESS));
    }

    #[test]
    fn memory_of_another_device_is_an_illegal_address() {
        let desk = Desk::new();
        let mut address = 0;
        assert_eq!(memory::allocate(Out::to(&mut address), 8), Ok(()));
        desk.on(1, || {
            assert_eq!(Loaded::new("ronde_fill").run(&[piece(0, address, 8)], &[0]), Err(ILLEGAL_ADDRESS));
        });
        assert_eq!((desk.simulation.fault(0), memory::free(address)), (None, Ok(())));
    }

    #[test]
    fn elements_between_their_places_are_misaligned() {
        let _desk = Desk::new();
        let known = Known::new(&[0_u64; 4]);
        let words = [known.at(0)];
        let pieces = [piece(0, known.at(2) + 2, 1)];
        assert_eq!(Loaded::new("ronde_fold_float32_sum_1").run(&pieces, &words), Err(MISALIGNED_ADDRESS));
    }

    #[test]
    fn places_that_overlap_in_part_have_no_result() {
        let _desk = Desk::new();
        let known = Known::new(&[0_u8; 8]);
        let pieces = [piece(known.at(0), known.at(1), 4)];
        assert_eq!(Loaded::new("ronde_move").run(&pieces, &[]), Err(LAUNCH_FAILED));
    }
}
