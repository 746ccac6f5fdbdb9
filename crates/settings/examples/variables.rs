//! Prints the page of variables: `cargo run --package ronde-settings --example variables > docs/variables.md`.

fn main() {
    print!("{}", ronde_settings::page::markdown());
}
