"""Real services and small tools for the tests; stand-ins only for what needs a GPU or Proxmox."""
