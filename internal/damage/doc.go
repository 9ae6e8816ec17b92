// Package damage contains no code but tests: each kind of damage to each kind of
// attachment is found by Health and repaired by Repair, while connections live on.
package damage
