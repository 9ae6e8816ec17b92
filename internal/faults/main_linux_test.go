package faults_test

import (
	"flag"
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// The numbers of rounds. The defaults are for everyday runs.
var (
	runtimeKills   = flag.Int("runtime-kills", 16, "M1: how often a runtime is killed")
	pluginKills    = flag.Int("plugin-kills", 12, "M2: how often a plugin is killed, in ADD and again in DEL")
	repairKills    = flag.Int("repair-kills", 12, "M16: how often a runtime is killed in Repair")
	guardKills     = flag.Int("guard-kills", 16, "M16: how often a guard is killed while it repairs")
	partials       = flag.Int("partials", 12, "M5: how often one of two networks fails")
	crowdSize      = flag.Int("crowd", 24, "M9: how many containers come at once")
	cutsPerStep    = flag.Int("cuts", 4, "M12: how many kinds of power cut are tried at each step; 0: all")
	costRounds     = flag.Int("cost-rounds", 100, "M13: how often the record is written for the median")
	livingRounds   = flag.Int("living-rounds", 1, "M16: how often each case is tried")
	patternRounds  = flag.Int("pattern-rounds", 1, "M21: how often each pattern of an importer is tried")
	ruleChanges    = flag.Int("rule-changes", 18, "M22: how often somebody changes rules under the eyes of a guard")
	ruleContainers = flag.Int("rule-containers", 4, "M22: how many containers are attached meanwhile")
	ruleLimit      = flag.Duration("rule-limit", expect.Patience, "M22: the time within which traffic must be back")
	seedFlag       = flag.Uint64("seed", 0, "seed of everything random; 0: one of its own for each run")
	tableFile      = flag.String("table", "", "a file for the table of figures, besides the log")
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. Started by a test, the
// test binary is a runtime that may be killed.
func TestMain(m *testing.M) {
	if isRuntime() {
		runtimeMain()
	}
	os.Exit(refplugins.Main(m, sandbox.OrphansOutside(), sandbox.Shards(2)))
}
