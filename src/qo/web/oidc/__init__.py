"""Login to the dashboard through an OpenID Connect provider: authorization code flow with PKCE."""
