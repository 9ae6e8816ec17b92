package cli

import (
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// toolFlags are the parameters of CNI's operations, as cnitool takes them from the
// environment, or from flags.
type toolFlags struct {
	id, ifName, args, capArgs string
}

const toolEnvironment = `The parameters of cnitool's environment are honored: CNI_PATH, NETCONFPATH, CNI_ARGS,
CAP_ARGS, CNI_IFNAME. Without --id the container is cnitool's for that namespace.`

func (a *app) addToolFlags(cmd *cobra.Command, f *toolFlags) {
	set := cmd.Flags()
	set.StringVar(&f.id, "id", "", "the `ID` of the container (default: made of the namespace's path, as by cnitool)")
	set.StringVar(&f.ifName, "ifname", a.variable("CNI_IFNAME", "eth0"), "the `name` of the interface in the container (CNI_IFNAME)")
	set.StringVar(&f.args, "args", a.Getenv("CNI_ARGS"), "arguments for the plugins: `KEY=VALUE;...` (CNI_ARGS)")
	set.StringVar(&f.capArgs, "cap-args", a.Getenv("CAP_ARGS"), "arguments of capabilities, as a `JSON` object (CAP_ARGS)")
}

// call is one operation on one network of a container.
type call struct {
	id, netns string
	opts      []cni.NamespaceOpts // of the network
}

// call returns what the flags and the path of a namespace mean.
func (f *toolFlags) call(netns string) (c call, err error) {
	if netns != "" { // else Remove goes by the ID, and --new-netns chooses a path
		if c.netns, err = filepath.Abs(netns); err != nil {
			return c, err
		}
	}
	if c.id = f.id; c.id == "" {
		if netns == "" {
			return c, usageError("neither a namespace nor --id is given: which container is it?")
		}
		// The ID that cnitool makes, so that del finds what it has attached.
		sum := sha512.Sum512([]byte(c.netns))
		c.id = fmt.Sprintf("cnitool-%x", sum[:10])
	}
	c.opts = []cni.NamespaceOpts{cni.WithInterfaceName(f.ifName)}
	if f.args != "" {
		for _, pair := range strings.Split(f.args, ";") {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || key == "" || value == "" || strings.Contains(value, "=") {
				return c, usageError("CNI_ARGS has %q: it is KEY=VALUE, and pairs are separated by semicolons", pair)
			}
			c.opts = append(c.opts, cni.WithArgs(key, value))
		}
	}
	if f.capArgs != "" {
		var values map[string]json.RawMessage // which keeps each digit
		if err := json.Unmarshal([]byte(f.capArgs), &values); err != nil {
			return c, usageError(`CAP_ARGS: %w: it is a JSON object such as {"portMappings": [...]}`, err)
		}
		for name, value := range values {
			c.opts = append(c.opts, cni.WithCapability(name, value))
		}
	}
	return c, nil
}

// network selects the network of the call.
func (c *call) network(name string) cni.NamespaceOpts { return cni.WithNetwork(name, c.opts...) }

// configOf returns the configuration of a network in the configuration directory.
func (a *app) configOf(rt *cni.Runtime, name string) (*cni.NetworkConfList, error) {
	config := rt.GetConfig()
	var names []string
	for _, n := range config.Networks {
		if n.Config.Name == name {
			return n.Config, nil
		}
		names = append(names, n.Config.Name)
	}
	advice := fmt.Sprintf("%s has these networks: %s.", config.PluginConfDir, strings.Join(unique(names), ", "))
	for _, file := range config.Skipped {
		advice += fmt.Sprintf("\n  It also has a file that cannot be used: %s: %s", file.Path, file.Reason)
	}
	return nil, advise(fmt.Errorf("network %q: %w", name, cni.ErrNotFound), "%s", advice)
}

// openNetworks is openLoaded with advice for a directory in which nothing can be used.
func (a *app) openNetworks(opts ...cni.Opt) (*cni.Runtime, error) {
	rt, err := a.openLoaded(opts...)
	if errors.Is(err, cni.ErrCNINotInitialized) && !errors.Is(err, cni.ErrInvalidConfig) {
		err = advise(err, "Write a configuration there, or name another directory with --conf-dir or NETCONFPATH.")
	}
	return rt, err
}

// answer has the exit code of a bad answer, if that is what a plugin has said; other errors
// stay as they are.
func answer(err error) error {
	var said *cni.Error
	if errors.As(err, &said) && said.Code != 0 {
		return &exitError{code: exitBad, err: err}
	}
	return err
}

// toolArgs are a network, and a namespace that operations which need none ignore.
func toolArgs(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments are given: it wants the name of a network and the path of a network namespace", len(args))
	}
	return nil
}

// changeableCall refuses a call for a container that only others have attached. found has
// whether it is on record here for the network.
func (a *app) changeableCall(rt *cni.Runtime, c call, network string) (found bool, err error) {
	recorded, err := a.recorded(rt, []string{c.id})
	if err != nil {
		return false, err
	}
	on := recorded[c.id]
	of := func(at cni.Attachment) bool { return at.Network == network }
	if len(on.own) == 0 && len(on.others) > 0 || slices.ContainsFunc(on.others, of) && !slices.ContainsFunc(on.own, of) {
		return false, a.foreign(on)
	}
	return slices.ContainsFunc(on.own, of), nil
}
