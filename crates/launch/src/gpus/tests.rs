//! What is visible, who gets what, and what is said where there is too little.

use super::*;

pub(super) fn undivided(count: usize) -> Vec<Device> {
    let device = |number| Device { uuid: Some(format!("GPU-{number}abc")), ..Device::default() };
    (0..count).map(device).collect()
}

fn divided() -> Vec<Device> {
    let mut devices = undivided(2);
    devices[0].instances = vec!["MIG-1a".to_owned(), "MIG-2b".to_owned()];
    devices
}

fn seen(devices: &[Device], mask: Option<&str>) -> Vec<String> {
    Gpus::of(devices, mask.map(str::to_owned)).visible
}

pub(super) fn gpus(count: usize, mask: Option<&str>) -> Gpus {
    Gpus::of(&undivided(count), mask.map(str::to_owned))
}

pub(super) fn place<'a>(host: &'a str, ranks: usize, gpus: &'a Gpus) -> Place<'a> {
    Place { host, ranks, here: false, gpus }
}

fn told(errors: &[Error]) -> String {
    errors.iter().map(Error::render).collect()
}

#[test]
fn all_gpus_are_visible_where_nothing_is_set() {
    assert_eq!(seen(&undivided(3), None), ["0", "1", "2"]);
    assert_eq!(seen(&[], None), [""; 0]);
}

#[test]
fn the_names_that_the_user_set_stand_as_they_are_up_to_the_first_that_means_nothing() {
    for (mask, expected) in [
        ("2,0", "2,0"),
        (" 1 , 2", "1,2"),
        ("0,7,1", "0"),
        ("0,-1,1", "0"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("GPU-2abc,GPU-0", "GPU-2abc,GPU-0"),
        ("GPU-0abc,GPU-f00d,GPU-1abc", "GPU-0abc"),
        ("MIG-GPU-1abc/1/0", "MIG-GPU-1abc/1/0"),
        ("MIG-GPU-f00d/1/0", ""),
    ] {
        assert_eq!(seen(&undivided(3), Some(mask)).join(","), expected, "{mask:?}");
    }
}

#[test]
fn a_uuid_is_believed_where_the_devices_do_not_tell_theirs() {
    let devices = vec![Device::default(); 2];
    assert_eq!(seen(&devices, Some("GPU-1abc,MIG-7,2")), ["GPU-1abc", "MIG-7"]);
    assert_eq!(seen(&[], Some("GPU-1abc")), [""; 0]);
    assert_eq!(seen(&[], Some("MIG-1abc")), [""; 0]);
}

#[test]
fn instances_of_divided_gpus_are_handed_out_one_by_one() {
    assert_eq!(seen(&divided(), None), ["MIG-1a", "MIG-2b", "GPU-1abc"]);
    assert_eq!(seen(&divided(), Some("MIG-2b,MIG-3c")), ["MIG-2b"]);
    assert_eq!(Gpus::of(&divided(), Some("0".to_owned())).present, 3);
}

#[test]
fn every_rank_gets_its_share_in_order() {
    let (four, masked) = (gpus(4, None), gpus(4, Some("GPU-3abc,GPU-1abc")));
    let places = [place("gpu1", 2, &four), place("gpu2", 1, &masked)];
    let given = hand_out(&places, 2).expect("enough");
    assert_eq!(given, [vec!["0,1", "2,3"], vec!["GPU-3abc,GPU-1abc"]]);
    let given = hand_out(&places[..1], 1).expect("enough");
    assert_eq!(given, [["0", "1"]], "the others stay free");
}

#[test]
fn a_machine_that_is_named_twice_gives_no_gpu_away_twice() {
    let four = gpus(4, None);
    let here = |host, ranks| Place { here: true, ..place(host, ranks, &four) };
    let places = [here("localhost", 2), place("gpu2", 2, &four), here("127.0.0.1", 2)];
    let given = hand_out(&places, 1).expect("enough");
    assert_eq!(given, [["0", "1"], ["0", "1"], ["2", "3"]]);
    let too_few = hand_out(&places, 2).expect_err("4 ranks of 2 GPUs on one machine");
    assert!(
        told(&too_few).contains("localhost = 127.0.0.1 has 4 GPUs; --gpus-per-rank 2 needs 8 for 4 ranks"),
        "{too_few:?}"
    );
}

#[test]
fn all_hosts_that_have_too_few_are_named_with_the_way_out() {
    let (none, three, masked) = (gpus(0, None), gpus(3, None), gpus(4, Some("1")));
    let places = [
        place("gpu1", 1, &three),
        place("gpu2", 2, &three),
        place("gpu3", 1, &masked),
        place("cpu1", 1, &none),
    ];
    assert_eq!(
        told(&hand_out(&places, 2).expect_err("too few")),
        "error: gpu2 has 3 GPUs; --gpus-per-rank 2 needs 4 for 2 ranks\n\
         hint: give it fewer slots (-H …,gpu2:1), or leave --gpus-per-rank out: ranks may share a GPU\n\
         error: gpu3 has 4 GPUs, of which CUDA_VISIBLE_DEVICES=1 shows 1; --gpus-per-rank 2 needs 2 for 1 rank\n\
         hint: leave gpu3 out of -H, or leave --gpus-per-rank out: ranks may share a GPU\n\
         error: cpu1 has no GPU; --gpus-per-rank 2 needs 2 for 1 rank\n\
         hint: leave cpu1 out of -H, or leave --gpus-per-rank out: ranks may share a GPU\n"
    );
    let alone = hand_out(&[place("localhost", 4, &three)], 1).expect_err("too few");
    assert!(
        told(&alone).ends_with(
            "hint: start fewer ranks (-np 3), or leave --gpus-per-rank out: ranks may share a GPU\n"
        )
    );
}
