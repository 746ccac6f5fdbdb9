//! What is used in place of MPI, Gloo and jsrun, said in one line to whoever asks for one of them.

use ronde_settings::registry::{absent, foreign};

use crate::args::MpiArgs;
use crate::config_file::ConfigFile;
use crate::notes::Notes;
use crate::problem::Problem;
use crate::tuning::CONTROLLER;

/// Answers the flags and the file's `controller`; returns the variables that follow from them.
pub(crate) fn answer(
    args: &MpiArgs,
    file: Option<&ConfigFile>,
    notes: &mut Notes,
) -> Result<Vec<(String, String)>, Problem> {
    let mut variables = Vec::new();
    let asked = match (args.gloo, args.mpi, args.jsrun) {
        (true, ..) => Some(("--gloo".to_owned(), "gloo".to_owned())),
        (_, true, _) => Some(("--mpi".to_owned(), "mpi".to_owned())),
        (.., true) => Some(("--jsrun".to_owned(), "jsrun".to_owned())),
        _ => from_file(file)?,
    };
    if let Some((source, library)) = asked {
        let instead = match library.as_str() {
            "gloo" => "Ronde's own controller and operations are used, in place of Gloo's",
            "mpi" => {
                "MPI is not used; Ronde reaches the hosts over ssh, coordinates ranks and moves tensors itself"
            }
            _ => "jsrun is not used; Ronde reaches the hosts over ssh and starts the ranks itself",
        };
        notes.note(format!("{source}: {instead}"));
        if library == "gloo" {
            // So that a variable in the environment that says otherwise is not complained about.
            for variable in [absent::CONTROLLER, absent::CPU_OPERATIONS] {
                variables.push((variable.name.to_owned(), library.clone()));
            }
        }
    }
    let mpirun = [("--mpi-args", &args.mpi_args), ("--binding-args", &args.binding_args)];
    let given: Vec<&str> =
        mpirun.iter().filter(|(_, value)| value.is_some()).map(|(flag, _)| *flag).collect();
    if !given.is_empty() {
        notes.without_effect(&given, "mpirun is not used, and ranks are not bound to cores");
    }
    if args.tcp {
        let variable = foreign::NCCL_IB_DISABLE.name;
        notes.note(format!("--tcp: tensors go over TCP in any case; {variable}=1 is set for NCCL"));
        variables.push((variable.to_owned(), "1".to_owned()));
    }
    Ok(variables)
}

/// The library that the file asks for, and where it does.
fn from_file(file: Option<&ConfigFile>) -> Result<Option<(String, String)>, Problem> {
    let entry =
        file.and_then(|file| Some((file, file.entries.iter().find(|entry| entry.key == CONTROLLER)?)));
    let Some((file, entry)) = entry else { return Ok(None) };
    let Some(library) = &entry.value else { return Ok(None) };
    match library.to_ascii_lowercase().as_str() {
        known @ ("gloo" | "mpi") => {
            Ok(Some((format!("{CONTROLLER} ({}:{})", file.path.display(), entry.line), known.to_owned())))
        }
        _ => Err(Problem::ConfigFile {
            path: file.path.clone(),
            line: entry.line,
            problem: format!("{CONTROLLER}: {library:?} is none of gloo, mpi"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::Entry;

    fn file(library: &str) -> ConfigFile {
        let entry = Entry { key: CONTROLLER.to_owned(), line: 1, value: Some(library.to_owned()) };
        ConfigFile { path: "c.yaml".into(), entries: vec![entry] }
    }

    fn said(args: &MpiArgs, file: Option<&ConfigFile>) -> Result<(Vec<String>, String), String> {
        let mut notes = Notes::default();
        let variables = answer(args, file, &mut notes).map_err(|problem| problem.to_string())?;
        Ok((variables.iter().map(|(name, value)| format!("{name}={value}")).collect(), notes.text(false)))
    }

    #[test]
    fn whoever_asks_for_a_library_is_told_what_is_used_instead() {
        let (variables, notes) = said(&MpiArgs { gloo: true, ..MpiArgs::default() }, None).expect("taken");
        assert_eq!(variables, ["HOROVOD_CONTROLLER=gloo", "HOROVOD_CPU_OPERATIONS=gloo"]);
        assert_eq!(
            notes,
            "note: --gloo: Ronde's own controller and operations are used, in place of Gloo's\n"
        );
        for (args, start) in [
            (MpiArgs { mpi: true, ..MpiArgs::default() }, "note: --mpi: MPI is not used"),
            (MpiArgs { jsrun: true, ..MpiArgs::default() }, "note: --jsrun: jsrun is not used"),
        ] {
            let (variables, notes) = said(&args, None).expect("taken");
            assert!(
                variables.is_empty() && notes.starts_with(start) && notes.lines().count() == 1,
                "{notes}"
            );
        }
        assert_eq!(said(&MpiArgs::default(), None), Ok((Vec::new(), String::new())));
    }

    #[test]
    fn the_file_may_ask_as_well_and_a_flag_wins() {
        let (_, notes) = said(&MpiArgs::default(), Some(&file("MPI"))).expect("taken");
        assert!(notes.starts_with("note: controller (c.yaml:1): MPI is not used"), "{notes}");
        let gloo = MpiArgs { gloo: true, ..MpiArgs::default() };
        let (_, notes) = said(&gloo, Some(&file("mpi"))).expect("taken");
        assert!(notes.starts_with("note: --gloo: ") && notes.lines().count() == 1, "{notes}");
        let error = said(&MpiArgs::default(), Some(&file("nccl"))).expect_err("no such controller");
        assert_eq!(error, "c.yaml:1: controller: \"nccl\" is none of gloo, mpi");
    }

    #[test]
    fn arguments_for_mpirun_are_taken_and_explained() {
        let arguments = Some("-x A".to_owned());
        let args =
            MpiArgs { mpi_args: arguments.clone(), binding_args: arguments, tcp: true, ..MpiArgs::default() };
        let (variables, notes) = said(&args, None).expect("taken");
        assert_eq!(variables, ["NCCL_IB_DISABLE=1"]);
        assert!(
            notes.starts_with("note: --mpi-args, --binding-args have no effect: mpirun is not used"),
            "{notes}"
        );
        assert!(notes.contains("note: --tcp: tensors go over TCP in any case"), "{notes}");
    }
}
