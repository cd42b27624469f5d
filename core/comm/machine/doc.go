// Package machine describes the machine that a process runs on: its identity as ranks compare it, what a host may be called, and
// its topology (memory nodes, network interfaces and their speed, accelerators), read from the system's files.
//
// It must not know ranks, addresses or transports: who is placed where, and who connects to whom, is for those above to say.
package machine
