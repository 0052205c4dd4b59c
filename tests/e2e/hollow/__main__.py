"""`python -m e2e.hollow KUBECONFIG SETTINGS`: see `e2e.hollow.kubelet`."""

from e2e.hollow.kubelet import main

main()
