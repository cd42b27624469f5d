// Package core is the folder of the runtime's layers; it has no code of its own. ARCHITECTURE.md describes
// them; the test beside this file enforces that imports point down only.
package core
