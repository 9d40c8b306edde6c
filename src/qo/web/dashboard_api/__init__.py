"""`/api/v1/dashboard`: the API of the dashboard's pages, in the terms of the model."""
