// Package comm moves gradients, parameters and metrics between ranks.
//
// It has three layers, each usable and tested without the one above:
//
//   - A Transport moves bytes between two ranks: in process (NewInProcess) or over Unix sockets and TCP (Listen, Connect).
//     It is ordered, reliable and receiver-driven: a message leaves only when the receiver has offered the memory it goes
//     to, so a transport holds no payload of its own and several groups share one connection without blocking each other.
//   - A Group is an ordered set of ranks over a transport, with its own sequence of collectives. Its collectives are
//     started in the same order on every member and executed by the group's own goroutine, so they overlap with whatever
//     the caller computes meanwhile; Start… returns a Handle, the plain form starts and waits.
//   - The canonical tree (Tree, Fold, Reduction) fixes the order of every addition by the number of lanes alone, so a
//     sum has the same bits on one rank or sixteen. Lane totals are added by the binary tree that splits at the largest
//     power of two below the count; a rank folds its own lanes as far as the tree allows (Fold), sends the maximal
//     subtrees it holds, and the owner of each chunk of the vector finishes the tree.
//
// Sums of float32 over lanes are what gradients need. For everything else there is a form for elements of any type
// (Element): PrepareAllReduceOf and PrepareReduceScatterOf as sum, mean, maximum or minimum (Combine), PrepareAllGatherOf,
// PrepareBroadcastOf, PrepareAllToAllOf, PrepareScatterOf, PrepareGatherOf, StartSendOf and StartRecvOf, and of the first four
// one for lists of vectors. Ranks that disagree on the type are told so (*MismatchError).
//
// # One gradient bucket, end to end
//
//	assign := comm.Assign(lanes, group.Size())           // lanes of every rank
//	red, err := comm.NewReduction(lanes, assign)         // shared by all buckets
//	fold := red.Fold(group.Rank())                       // which buffer each lane writes, what to add after it
//	for _, step := range fold.Steps {
//		zero(buf[step.Buffer]); backward(step.Lane, buf[step.Buffer])
//		for _, a := range step.Adds { buf[a.Dst] += buf[a.Src] }
//	}
//	h := group.StartAllReduceTree("bucket 3", red, buf[:len(fold.Nodes)], out)  // out may be buf[0]
//	…
//	err = h.Wait(ctx)
//
// On ranks that share memory, buffers that lie in what Group.Allocate gives are summed where they lie.
//
// # Failure
//
// Every wait has a deadline. The first rank to see a failure — a rank that did not come (*StallError), a rank that
// entered another operation (*MismatchError), a broken connection (*PeerError) — fails its group and sends the reason to
// the other members, so that every rank returns it. About a deadline that has passed members confer first, so that all name
// the rank that holds them up, whoever waits for whom (doubt.go). A failed group stays failed; the buffers of an
// unfinished collective belong to the transport until its Close has returned.
//
// # What it must not know
//
// What the numbers mean: no graphs, parameters, buckets or recipes (a caller's label says those), no processes and no
// launching (core/cluster), no devices.
package comm
