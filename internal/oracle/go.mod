module github.com/embedcni/cni/internal/oracle

go 1.24.2

replace github.com/embedcni/cni => ../..
