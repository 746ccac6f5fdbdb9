//! Everything that can be typed behind `ronde cluster`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Make a cluster of machines and train on it.
///
/// One master and any number of workers on an OpenStack cloud, with containers, JupyterLab and a shared folder, from a
/// login to a training run; gone again with one command. Also on machines you have, and on this one to try it.
#[derive(Debug, Parser)]
#[command(name = "ronde-cluster", bin_name = "ronde cluster", version, max_term_width = 100)]
#[command(after_help = "Example:\n  \
    ronde cluster init\n  \
    ronde cluster up\n  \
    ronde cluster run -- python /examples/tensorflow2_mnist.py\n  \
    ronde cluster down\n\
    Without a cloud:\n  \
    ronde cluster up --local 3")]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) verb: ClusterVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    Init(Box<InitArgs>),
    Plan(PlanArgs),
    Up(UpArgs),
    Status(StatusArgs),
    Ssh(SshArgs),
    Jupyter(JupyterArgs),
    Run(RunArgs),
    Scale(ScaleArgs),
    Down(DownArgs),
}

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FolderArgs {
    /// The cluster's folder; without it, the one we are in, or ronde-cluster in it.
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

/// With which programs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProgramArgs {
    /// The Terraform or OpenTofu to use; without it, terraform or tofu of the PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) terraform: Option<PathBuf>,

    /// The ansible-playbook to use; without it, the one of the PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) ansible: Option<PathBuf>,
}

/// What containers of the cluster train with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Framework {
    Tensorflow,
    Torch,
}

impl Framework {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Framework::Tensorflow => "tensorflow",
            Framework::Torch => "torch",
        }
    }
}

/// Write the folder of a new cluster.
///
/// Asks for what is not given where there is a terminal. Passwords are never taken from the command line: they come
/// from OS_PASSWORD or OS_APPLICATION_CREDENTIAL_SECRET, from a file, or are asked for. Best is an entry in clouds.yaml
/// (--cloud): then no secret is written at all.
#[derive(Debug, Default, Args)]
pub(crate) struct InitArgs {
    /// The folder to write; without it, ronde-cluster.
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,

    /// The entry of clouds.yaml to log in with.
    #[arg(long, value_name = "NAME", env = "OS_CLOUD", help_heading = "Login")]
    pub(crate) cloud: Option<String>,

    /// The address of the cloud's Keystone.
    #[arg(long, value_name = "URL", env = "OS_AUTH_URL", help_heading = "Login")]
    pub(crate) auth_url: Option<String>,

    /// The project.
    #[arg(long, value_name = "NAME", env = "OS_PROJECT_NAME", help_heading = "Login")]
    pub(crate) project: Option<String>,

    /// The region.
    #[arg(long, value_name = "NAME", env = "OS_REGION_NAME", help_heading = "Login")]
    pub(crate) region: Option<String>,

    /// The domain of the user.
    #[arg(long, value_name = "NAME", env = "OS_USER_DOMAIN_NAME", help_heading = "Login")]
    pub(crate) user_domain: Option<String>,

    /// The user; the password is in OS_PASSWORD, in a file, or asked for.
    #[arg(long, value_name = "NAME", env = "OS_USERNAME", help_heading = "Login")]
    pub(crate) user: Option<String>,

    /// The id of an application credential; its secret is in OS_APPLICATION_CREDENTIAL_SECRET, in a file, or asked for.
    #[arg(long, value_name = "ID", env = "OS_APPLICATION_CREDENTIAL_ID", help_heading = "Login")]
    pub(crate) application_credential: Option<String>,

    /// A file with the password, or with the secret of the application credential.
    #[arg(long, value_name = "FILE", help_heading = "Login")]
    pub(crate) password_file: Option<PathBuf>,

    /// How many workers.
    #[arg(long, value_name = "N", help_heading = "Machines")]
    pub(crate) workers: Option<u64>,

    /// The flavour of the machines.
    #[arg(long, value_name = "NAME", help_heading = "Machines")]
    pub(crate) flavor: Option<String>,

    /// The flavour of the workers, where it is another.
    #[arg(long, value_name = "NAME", help_heading = "Machines")]
    pub(crate) worker_flavor: Option<String>,

    /// The system image of the machines.
    #[arg(long, value_name = "NAME", help_heading = "Machines")]
    pub(crate) os_image: Option<String>,

    /// The user that this image lets in; without it ubuntu, if the image's name says so, or else debian.
    #[arg(long, value_name = "NAME", help_heading = "Machines")]
    pub(crate) ssh_user: Option<String>,

    /// The key to log in with: the name of a key pair in the cloud, or the file of a public key; without it yours in
    /// ~/.ssh, or else the first of your ssh agent.
    #[arg(long, value_name = "NAME|FILE", help_heading = "Machines")]
    pub(crate) key: Option<String>,

    /// The size of a volume for the shared folder, in GB.
    #[arg(long, value_name = "GB", help_heading = "Machines")]
    pub(crate) volume_size: Option<u64>,

    /// A floating IP that you have; without it, one is allocated.
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub(crate) public_ip: Option<String>,

    /// The network that floating IPs come from; without it, the only one there is.
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) external_network: Option<String>,

    /// A network of the project to use, instead of one of the cluster's own.
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) network: Option<String>,

    /// Where ssh and JupyterLab may be reached from: your address, as in 203.0.113.7/32.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) admin_cidr: Option<String>,

    /// What the names of all machines begin with.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) name: Option<String>,

    /// What the containers train with.
    #[arg(long, value_name = "FRAMEWORK", help_heading = "Cluster")]
    pub(crate) framework: Option<Framework>,

    /// A container image to use, instead of building one.
    #[arg(long, value_name = "IMAGE", help_heading = "Cluster")]
    pub(crate) image: Option<String>,

    /// The wheel to build the image with; without it, the installed package is packed again.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) wheel: Option<PathBuf>,

    /// Write into a folder that is there, too: its two variable files and its state are kept.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Show what `up` would make, change and delete, and check that the cloud allows it.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

/// Make the cluster, or go on where an interrupted run has stopped.
///
/// Checks quota, image, flavour, key and address before anything is made. A second run looks at all machines again and
/// changes only what is not as it should be. Ctrl-C stops it; the same command then goes on.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,

    /// Use the machines of this Ansible inventory, which has the groups master and workers, instead of a cloud's.
    #[arg(long, value_name = "FILE", conflicts_with = "local")]
    pub(crate) inventory: Option<PathBuf>,

    /// Make so many containers on this machine, instead of machines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) local: Option<u16>,

    /// What the containers train with, with --local or --inventory; remembered.
    #[arg(long, value_name = "FRAMEWORK")]
    pub(crate) framework: Option<Framework>,

    /// A container image or its archive to use with --local or --inventory, instead of building one; remembered.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,

    /// The wheel to build the image with, if there is no folder yet.
    #[arg(long, value_name = "FILE")]
    pub(crate) wheel: Option<PathBuf>,

    /// Do not ask before something that is there is deleted or replaced.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Show whether everything is as it should be: machines, containers, the shared folder, JupyterLab, and a job of two ranks.
///
/// Ends with status 1 if something is not, and says what to do.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,

    /// Do not start a job.
    #[arg(long)]
    pub(crate) no_smoke: bool,

    /// Write it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Open a shell on a machine, or run a command there.
#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,

    /// Which machine, as in worker-1 or host2; without it, the master.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// What to run there.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Open JupyterLab, or say where it is and how its token is read.
#[derive(Debug, Args)]
pub(crate) struct JupyterArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,

    /// Print the token, and nothing else.
    #[arg(long, conflicts_with = "tunnel")]
    pub(crate) token: bool,

    /// Reach it through ssh, at this port of this machine (0: its own port), until Ctrl-C.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0")]
    pub(crate) tunnel: Option<u16>,
}

/// Train on the cluster: `ronde run` in the master's container, on all machines.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ronde cluster run -- python /examples/tensorflow2_mnist.py")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,

    /// How many ranks; without it, one for every GPU, or for every machine that has none.
    #[arg(short = 'n', long = "np", value_name = "N")]
    pub(crate) ranks: Option<usize>,

    /// What every rank runs, with flags of `ronde run` in front, if any.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Change how many workers there are.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// How many.
    #[arg(value_name = "N")]
    pub(crate) workers: u64,

    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,

    /// Do not ask before something other than a worker is deleted or replaced.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Delete everything that was made; the folder stays.
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) programs: ProgramArgs,

    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Only if it is a cluster of containers on this machine.
    #[arg(long)]
    pub(crate) local: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_consistent() {
        ClusterArgs::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_flags() {
        let words = ["ronde-cluster", "run", "-n", "2", "--", "--verbose", "python", "a.py", "--np", "3"];
        let ClusterVerb::Run(args) = ClusterArgs::parse_from(words).verb else { panic!("run") };
        assert_eq!(args.ranks, Some(2));
        assert_eq!(args.command, ["--verbose", "python", "a.py", "--np", "3"]);
    }
}
