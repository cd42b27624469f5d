// Package mesh describes how the ranks of a job are laid out over axes such as data and shard, and on which host each of them
// goes. It is arithmetic on numbers and names.
//
// It must not know transports, groups or processes: comm makes the group of an axis, core/cluster starts ranks where they belong.
package mesh
