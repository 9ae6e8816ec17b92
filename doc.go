// Package cni attaches containers to networks through the Container Network
// Interface (CNI).
package cni
