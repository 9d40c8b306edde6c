"""`/api/v1/dashboard`: what the dashboard's pages ask, in the model's own words."""
