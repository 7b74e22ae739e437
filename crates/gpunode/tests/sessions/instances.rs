//! Instances of graphs: changed, updated, counted.

use super::client::{self, Client, PIECE, list};
use super::{NONE, copy_out, define, launch, launch_graph, stream, with_kernel};
use hinterland_proto::gpu::GRAPH_BYTES_MAX;
use hinterland_proto::gpu::answer::AnswerMessage;
use hinterland_proto::gpu::command::{self as c, Command, launch_flags};

#[test]
fn commands_of_an_instance_are_left_out_and_changed_one_by_one() {
    for options in [NONE, "memory=64M,kernels=none,delay-us=1000"] {
        let mut client = Client::start(options);
        let address = client.map(0, 1);
        stream(&mut client, 20, 1);
        let fill = |place, value| {
            let (address, count) = (address + place, 4);
            c::Fill { stream: 20, element: 1, address, count, value }
        };
        let all = list(&[
            (Command::Fill(fill(0, 1)), &[]),
            (Command::Fill(fill(4, 2)), &[]),
            (Command::CopyOut(c::CopyOut { stream: 20, transfer: 0, address, bytes: 8 }), &[]),
        ]);
        define(&mut client, 1, 0, all.len(), &all);
        for exec in [5, 6] {
            client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec, graph: 1, flags: 0 }));
        }
        client.send(&Command::GraphDestroy(c::GraphDestroy { graph: 1 }));
        let switch = |client: &mut Client, step, is_on| {
            client.send(&Command::GraphSwitch(c::GraphSwitch { exec: 5, step, is_on }))
        };
        let change = |client: &mut Client, step, word, command: &Command| {
            let change = Command::GraphChange(c::GraphChange { exec: 5, step, word });
            client.with_tail(&change, &client::encode(command, &[]).1)
        };
        let mut transfer = 0;
        let mut launched = |client: &mut Client, exec, expected: &[u8]| {
            transfer += 1;
            client.send(&Command::Fill(c::Fill { count: 8, ..fill(0, 9) }));
            let content = Command::LaunchContent(c::LaunchContent { exec, transfers: 1 });
            client.with_tail(&content, &u32::to_le_bytes(transfer));
            launch_graph(client, exec, 20);
            client.expect_bytes(transfer, expected);
        };
        switch(&mut client, 1, 0);
        launched(&mut client, 5, &[1, 1, 1, 1, 9, 9, 9, 9]);
        // Also while it is left out.
        change(&mut client, 1, c::Fill::WORD, &Command::Fill(fill(4, 7)));
        switch(&mut client, 0, 0);
        switch(&mut client, 0, 0);
        launched(&mut client, 5, &[9; 8]);
        switch(&mut client, 1, 1);
        launched(&mut client, 5, &[9, 9, 9, 9, 7, 7, 7, 7]);
        switch(&mut client, 0, 1);
        change(&mut client, 0, c::Fill::WORD, &Command::Fill(fill(2, 3)));
        launched(&mut client, 5, &[9, 9, 3, 3, 7, 7, 7, 7]);
        launched(&mut client, 6, &[1, 1, 1, 1, 2, 2, 2, 2]);
        client.settle();
    }
}

#[test]
fn an_instance_is_none_any_more_when_a_command_of_it_cannot_be_changed() {
    let mut client = with_kernel(NONE);
    let address = client.map(0, 1);
    stream(&mut client, 20, 1);
    let fill = |stream, address| c::Fill { stream, element: 1, address, count: 4, value: 1 };
    let copy = c::CopyOut { stream: 20, transfer: 0, address, bytes: 0 };
    let flagged = c::Launch { flags: launch_flags::COOPERATIVE, ..launch(1, 20) };
    let all = list(&[
        (Command::Fill(fill(20, address)), &[]),
        (Command::CopyOut(copy), &[]),
        (Command::Launch(launch(1, 20)), &[0; 12]),
    ]);
    define(&mut client, 1, 0, all.len(), &all);
    let changes: [(u32, Command, &[u8], &str); 7] = [
        (3, Command::Fill(fill(20, address)), &[], "command 3 of an instance"),
        (1, Command::CopyOut(copy), &[], "command 1 of an instance"),
        (0, Command::CopyOut(copy), &[], "command 0 of an instance"),
        (0, Command::Fill(fill(21, address)), &[], "command 0 of an instance"),
        (0, Command::Fill(fill(20, address + PIECE)), &[], "not all memory of this session"),
        (2, Command::Launch(flagged), &[0; 12], "command 2 of an instance"),
        (2, Command::Launch(launch(1, 20)), &[0; 11], "takes 12 bytes of parameters was given 11"),
    ];
    for (step, command, tail, words) in changes {
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
        let (word, body) = client::encode(&command, tail);
        let count = client.with_tail(&Command::GraphChange(c::GraphChange { exec: 5, step, word }), &body);
        client.expect_fault(count, 1, words);
        let count = launch_graph(&mut client, 5, 20);
        client.expect_fault(count, 400, "no instance of a graph 5");
    }
    // A kernel that is left out is looked at as well: its driver is given the parameters.
    client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
    client.send(&Command::GraphSwitch(c::GraphSwitch { exec: 5, step: 2, is_on: 0 }));
    let (word, body) = client::encode(&Command::Launch(launch(1, 20)), &[0; 11]);
    let count = client.with_tail(&Command::GraphChange(c::GraphChange { exec: 5, step: 2, word }), &body);
    client.expect_fault(count, 1, "takes 12 bytes of parameters was given 11");
    for (exec, step, error, words) in
        [(5, 1, 1, "command 1 of an instance"), (7, 0, 400, "no instance of a graph 7")]
    {
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
        let count = client.send(&Command::GraphSwitch(c::GraphSwitch { exec, step, is_on: 0 }));
        client.expect_fault(count, error, words);
    }
    client.settle();
}

#[test]
fn a_command_that_is_changed_to_and_fro_takes_room_once() {
    const LONG: usize = 4096;
    let mut client = with_kernel(NONE);
    stream(&mut client, 20, 1);
    let all = list(&[(Command::Launch(launch(1, 20)), &[0; 12])]);
    define(&mut client, 1, 0, all.len(), &all);
    client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph: 1, flags: 0 }));
    // Longer than a graph may be, if each stood behind the one before.
    for _ in 0..=GRAPH_BYTES_MAX as usize / LONG {
        for bytes in [LONG, 12] {
            let (word, body) = client::encode(&Command::Launch(launch(1, 20)), &vec![0; bytes]);
            client.with_tail(&Command::GraphChange(c::GraphChange { exec: 5, step: 0, word }), &body);
        }
    }
    client.settle();
}

#[test]
fn an_instance_that_could_not_be_updated_does_nothing_until_it_is() {
    let mut client = Client::start(NONE);
    let address = client.map(0, 1);
    stream(&mut client, 20, 1);
    let fill = |place, value| {
        let (address, count) = (address + place, 4);
        Command::Fill(c::Fill { stream: 20, element: 1, address, count, value })
    };
    let update =
        |client: &mut Client, graph| client.send(&Command::GraphUpdate(c::GraphUpdate { exec: 5, graph }));
    for (graph, fills) in [(1, [fill(0, 1), fill(4, 2)]), (2, [fill(PIECE, 3), fill(0, 4)])] {
        let all = list(&[(fills[0], &[]), (fills[1], &[])]);
        define(&mut client, graph, 0, all.len(), &all);
        if graph == 1 {
            client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 5, graph, flags: 0 }));
        }
    }
    // The list was refused, and so is what knows it by its name.
    let (fault, _) = (client.next(), update(&mut client, 2));
    assert!(matches!(fault.message, AnswerMessage::Fault(_)), "{fault:?}");
    assert!(matches!(client.next().message, AnswerMessage::Fault(_)));
    // The client means commands of the list that was refused.
    let said = "instance of a graph 5 could not be updated";
    let count = client.send(&Command::GraphSwitch(c::GraphSwitch { exec: 5, step: 0, is_on: 0 }));
    client.expect_fault(count, 400, said);
    let (word, body) = client::encode(&fill(0, 7), &[]);
    let count = client.with_tail(&Command::GraphChange(c::GraphChange { exec: 5, step: 1, word }), &body);
    client.expect_fault(count, 400, said);
    let count = launch_graph(&mut client, 5, 20);
    client.expect_fault(count, 400, said);
    client.send(&Command::Fill(c::Fill { stream: 20, element: 1, address, count: 8, value: 9 }));
    copy_out(&mut client, 20, 1, address, 8);
    client.expect_bytes(1, &[9; 8]);
    update(&mut client, 1);
    launch_graph(&mut client, 5, 20);
    copy_out(&mut client, 20, 2, address, 8);
    client.expect_bytes(2, &[1, 1, 1, 1, 2, 2, 2, 2]);
    client.settle();
}

#[test]
fn instances_whose_graphs_are_gone_count_among_all_lists() {
    let mut client = Client::start(NONE);
    client.map(0, 1);
    stream(&mut client, 20, 1);
    // Each as long as a graph may be: made of one by edits, which are none.
    let nothing = Command::CopyIn(c::CopyIn { stream: 20, flags: 0, address: client.welcome.window });
    let all = list(&[(nothing, &vec![0; PIECE as usize])]).repeat((GRAPH_BYTES_MAX / PIECE) as usize - 1);
    let bytes = all.len() as u64;
    let head = c::Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes };
    client.send(&Command::Graph(head));
    for part in all.chunks(60_000) {
        client.with_tail(&Command::GraphPart(c::GraphPart { graph: 1 }), part);
    }
    let mut exec = 0;
    let mut make = |client: &mut Client, graph| {
        exec += 1;
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec, graph, flags: 0 }))
    };
    for graph in [2, 3] {
        define(&mut client, graph, 1, all.len(), &[]);
        make(&mut client, graph);
        client.send(&Command::GraphDestroy(c::GraphDestroy { graph }));
    }
    make(&mut client, 1);
    let count = make(&mut client, 1);
    client.expect_fault(count, 1, "is too large");
    // Room comes back with what had it.
    client.send(&Command::GraphExecDestroy(c::GraphExecDestroy { exec: 2 }));
    make(&mut client, 1);
    client.settle();
}

#[test]
fn short_commands_of_lists_count_as_what_they_take() {
    const COMMANDS: usize = 1 << 20;
    let mut client = Client::start(NONE);
    stream(&mut client, 20, 1);
    let one = list(&[(Command::EventRecord(c::EventRecord { event: 1, stream: 20, flags: 0 }), &[])]);
    let all = one.repeat(COMMANDS);
    let bytes = all.len() as u64;
    client.send(&Command::Graph(c::Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes }));
    for part in all.chunks(60_000) {
        client.with_tail(&Command::GraphPart(c::GraphPart { graph: 1 }), part);
    }
    // Their lists alone would be a tenth of what all may take.
    for exec in 1..=3 {
        client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec, graph: 1, flags: 0 }));
    }
    client.settle();
    let count = client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 4, graph: 1, flags: 0 }));
    client.expect_fault(count, 1, "is too large");
    client.settle();
}
