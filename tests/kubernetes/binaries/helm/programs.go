//go:build programs

// Package programs names the program that is built, so that `go mod tidy` keeps what it needs in go.sum. It is never
// built itself.
package programs

import _ "helm.sh/helm/v3/cmd/helm"
