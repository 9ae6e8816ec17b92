// Program moved imports go-cni, as does a module that it requires.
package main

import (
	"fmt"

	cni "github.com/containerd/go-cni"

	"example.org/dependency"
)

func main() {
	var loaded cni.CNI
	var err error
	loaded, err = dependency.Loaded(cni.WithMinNetworkCount(1), cni.WithLoNetwork)
	fmt.Printf("%T %v\n", loaded, err)
	for _, n := range loaded.GetConfig().Networks {
		fmt.Println(n.IFName, n.Config.Name, n.Config.Plugins[0].Network.Type)
	}
	loaded, err = cni.New(cni.WithPluginConfDir("/nowhere"), cni.WithDefaultConf)
	fmt.Println(loaded == nil, cni.IsCNINotInitialized(err))
}
